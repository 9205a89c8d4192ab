import java.util.HashMap;

/** A map of strings that fills most of the heap; it is gone through twice, and a part of it is replaced. */
public class Heap {
    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]) * 120_000;
        HashMap<Integer, String> map = new HashMap<>();
        for (int i = 0; i < count; i++) map.put(i, "value of the key number " + i);
        long sum = 0;
        for (int round = 0; round < 2; round++) {
            for (int i = 0; i < count; i++) sum += map.get(i).length();
            for (int i = round; i < count; i += 16) map.put(i, "another value of the key number " + i);
        }
        System.out.println(map.size() + " " + sum);
    }
}

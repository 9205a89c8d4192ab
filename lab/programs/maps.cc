// Maps of strings, as programs of C++ have them: built, gone through, and read at random.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <unordered_map>

static uint64_t below(uint64_t bound)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % bound;
}

static std::string value(uint64_t key)
{
    return "the value that belongs to the key number " + std::to_string(key);
}

int main(int argc, char **argv)
{
    uint64_t percent = argc > 1 ? strtoull(argv[1], nullptr, 10) : 100, count = 60000 * percent, sum = 0;
    std::map<uint64_t, std::string> ordered;
    std::unordered_map<std::string, uint64_t> hashed;
    for (uint64_t key = 0; key < count; key++) {
        ordered[key * 3] = value(key);
        hashed[value(key)] = key;
    }
    for (auto &entry : ordered)
        sum += entry.second.size() + entry.first;
    for (uint64_t turn = 0; turn < 100 * percent; turn++) {
        uint64_t key = below(count);
        if (hashed[value(key)] != key || ordered[key * 3] != value(key))
            return 1;
        ordered.erase(key * 3);
        ordered[key * 3] = value(key);
        sum += key;
    }
    printf("%zu %zu %llu\n", ordered.size(), hashed.size(), (unsigned long long)sum);
}

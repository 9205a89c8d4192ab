/*
 * A program that allocates more than it needs: 1 GiB at 100 percent, of which an eighth is used, at random.
 *
 * `needs PERCENT` prints a checksum of what it has read.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define ALL_WORDS (UINT64_C(1) << 27)
#define USES (UINT64_C(1500) << 20)

int main(int argc, char **argv)
{
    uint64_t percent = argc > 1 ? strtoull(argv[1], NULL, 10) : 100;
    uint64_t words = ALL_WORDS * percent / 100, used = words / 8, uses = USES * percent / 100;
    uint64_t *memory = malloc(words * sizeof *memory);
    if (!memory || used == 0) {
        fprintf(stderr, "no memory for %" PRIu64 " words\n", words);
        return 1;
    }
    uint64_t state = 88172645463325252, sum = 0;
    for (uint64_t word = 0; word < words; word++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memory[word] = word % 512 < 256 ? state : word;
    }
    for (uint64_t use = 0; use < uses; use++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        sum += memory[state % used];
    }
    printf("%" PRIu64 "\n", sum);
    return 0;
}

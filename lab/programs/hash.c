/*
 * A Tokyo Cabinet hash database: records are stored at random through a mapping of the file.
 *
 * `hash run DIR PERCENT` is what is measured, `hash check DIR PERCENT` reads all that was stored and prints
 * a checksum, `hash warm` ends at once.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tcutil.h>
#include <tchdb.h>

#define RECORDS INT64_C(1000000)
#define KEYS INT64_C(700000)
#define VALUE_BYTES 200
#define BUCKETS INT64_C(1000000)
#define MAP_BYTES (INT64_C(1) << 30)

static uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static int failed(TCHDB *db, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, tchdberrmsg(tchdbecode(db)));
    return 1;
}

static int run(TCHDB *db, int64_t percent)
{
    uint64_t value[VALUE_BYTES / 8];
    int64_t records = RECORDS * percent / 100;
    int64_t keys = KEYS * percent / 100 + 1;
    for (int64_t record = 0; record < records; record++) {
        uint64_t key = mix(record) % keys;
        for (size_t word = 0; word < VALUE_BYTES / 8; word++)
            value[word] = mix(record + word * RECORDS);
        if (!tchdbput(db, &key, sizeof key, value, sizeof value))
            return failed(db, "put");
    }
    printf("%" PRIu64 " records\n", tchdbrnum(db));
    return 0;
}

static int check(TCHDB *db, int64_t percent)
{
    uint64_t value[VALUE_BYTES / 8];
    uint64_t total = 0;
    int64_t keys = KEYS * percent / 100 + 1;
    for (int64_t number = 0; number < keys; number++) {
        uint64_t key = number;
        int bytes = tchdbget3(db, &key, sizeof key, value, sizeof value);
        for (int word = 0; word < bytes / 8; word++)
            total = total * 31 + value[word];
    }
    printf("%" PRIu64 " records, %" PRIu64 "\n", tchdbrnum(db), total);
    return 0;
}

int main(int argc, char **argv)
{
    char path[4096];
    TCHDB *db;
    int checks, result;
    if (argc < 4)
        return 0;
    checks = strcmp(argv[1], "check") == 0;
    snprintf(path, sizeof path, "%s/hash.tch", argv[2]);
    db = tchdbnew();
    tchdbtune(db, BUCKETS, -1, -1, 0);
    tchdbsetxmsiz(db, MAP_BYTES);
    if (!tchdbopen(db, path, checks ? HDBOREADER : HDBOWRITER | HDBOCREAT | HDBOTRUNC))
        return failed(db, "open");
    result = (checks ? check : run)(db, atoll(argv[3]));
    if (!tchdbclose(db))
        return failed(db, "close");
    return result;
}

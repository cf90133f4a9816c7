/* replay.c: runs a fuzz target over files, without a fuzzer, so that every test run covers the corpus.
 *
 *     replay_gguf fuzz/corpus/gguf [more files or folders ...]
 *
 * Each input is given whole and cut short at sixteen places (what parsers most often get wrong), in a block
 * of exactly its size, so that the sanitizers see a read past the end.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

#define MAX_BYTES ((size_t)64 << 20)
#define CUTS      16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void give(const char *data, size_t size)
{
    uint8_t *block = xmalloc(size ? size : 1);
    uint8_t *exact = size ? block : block + 1; /* nothing can be read from an empty input either */
    memcpy(exact, data, size);
    LLVMFuzzerTestOneInput(exact, size);
    xfree(block);
}

static int replay_file(const char *path)
{
    struct err e = {0};
    struct buf b = BUF_INIT;
    if (file_slurp(path, MAX_BYTES, &b, &e) != 0) {
        fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    for (size_t i = 0; i < CUTS; i++)
        give(b.s, b.len * i / CUTS);
    give(b.s, b.len);
    buf_release(&b);
    return 1;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Returns the number of files replayed, or -1. */
static int replay(const char *path)
{
    if (!path_is_dir(path))
        return replay_file(path);
    struct dirent **entry;
    int n_files = 0, n = scandir(path, &entry, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char *file = path_join(path, entry[i]->d_name);
        if (path_is_file(file) && n_files >= 0)
            n_files = replay_file(file) < 0 ? -1 : n_files + 1;
        xfree(file);
        free(entry[i]);
    }
    if (n >= 0)
        free(entry);
    return n_files;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int n = replay(argv[i]);
        if (n <= 0) {
            fprintf(stderr, "%s: there is no input to replay\n", argv[i]);
            return 1;
        }
        total += n;
    }
    printf("%d inputs replayed, whole and cut short at %d places\n", total, CUTS);
    return total == 0;
}

#include "formats/source.h"

#include <endian.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <openssl/evp.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/gguf.h"

#define PROBE_BYTES  256u
#define HEADER_BYTES ((uint64_t)512 << 20)

static void add_hex(struct buf *b, const unsigned char *p, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        buf_addf(b, "%02x", p[i]);
}

static json_t *digest_text(EVP_MD_CTX *md, const char *before)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    struct buf b = BUF_INIT;
    buf_adds(&b, before);
    EVP_DigestFinal_ex(md, digest, &n);
    add_hex(&b, digest, n);
    json_t *ret = json_string(b.s);
    buf_release(&b);
    return ret;
}

static int hash_bytes(EVP_MD_CTX *md, const struct file *f, uint64_t at, uint64_t n, struct err *e)
{
    const uint64_t piece = 1 << 20;
    uint8_t *p = xmalloc((size_t)MIN(n, piece) + 1);
    int rc = 0;
    for (uint64_t end = at + n, k; at < end && !rc; at += k) {
        k = MIN(end - at, piece);
        rc = file_read_at(f, at, p, (size_t)k, e);
        if (!rc)
            EVP_DigestUpdate(md, p, (size_t)k);
    }
    xfree(p);
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a, *y = *(const struct tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* One weight file: what the head of this header says. */
static int hash_file(EVP_MD_CTX *md, const struct checkpoint *c, int file, const char *path, struct err *e)
{
    const struct tensor **list;
    size_t n = 0;
    struct file f;
    int rc = file_open(&f, path, e);
    if (rc)
        return rc;
    XNEW_N(list, checkpoint_n_tensors(c));
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        if (checkpoint_tensor(c, i)->file == file)
            list[n++] = checkpoint_tensor(c, i);
    if (n > 1)
        qsort(list, n, sizeof(*list), by_offset);
    const char *name = checkpoint_file_name(c, file);
    uint64_t size = htole64(f.size);
    EVP_DigestUpdate(md, name, strlen(name) + 1);
    EVP_DigestUpdate(md, &size, sizeof(size));
    rc = hash_bytes(md, &f, 0, MIN(n ? list[0]->offset : f.size, HEADER_BYTES), e);
    for (size_t i = 0; i < n && !rc; i++) {
        uint64_t k = MIN(list[i]->n_bytes, PROBE_BYTES);
        rc = hash_bytes(md, &f, list[i]->offset + (list[i]->n_bytes - k) / 2, k, e);
    }
    xfree(list);
    file_close(&f);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int hash_of(const struct checkpoint *c, const char *folder, json_t **ret, struct err *e)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    struct buf config = BUF_INIT;
    int n = checkpoint_n_files(c), rc = 0;
    const char **name;
    XNEW_N(name, (size_t)n);
    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    for (int i = 0; i < n; i++)
        name[i] = checkpoint_file_name(c, i);
    qsort(name, (size_t)n, sizeof(*name), by_name);
    for (int k = 0; k < n && !rc; k++)
        for (int i = 0; i < n && !rc; i++)
            if (checkpoint_file_name(c, i) == name[k]) {
                char *path = path_join(folder, name[k]);
                rc = hash_file(md, c, i, path, e);
                xfree(path);
            }
    if (!checkpoint_gguf(c))
        json_print(checkpoint_config(c), JSON_SORT_KEYS | JSON_COMPACT, &config);
    EVP_DigestUpdate(md, config.s, config.len);
    if (!rc)
        *ret = digest_text(md, "sha256:");
    EVP_MD_CTX_free(md);
    buf_release(&config);
    xfree(name);
    return rc;
}

static int64_t mtime_ns(const struct stat *st)
{
    return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

static int content_hash(const char *path, json_t **ret, struct err *e)
{
    struct file f;
    int rc = file_open(&f, path, e);
    if (rc)
        return rc;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    rc = hash_bytes(md, &f, 0, f.size, e);
    if (!rc)
        *ret = digest_text(md, "");
    EVP_MD_CTX_free(md);
    file_close(&f);
    return rc;
}

static int describe_file(const char *folder, const char *name, bool full, json_t *list, struct err *e)
{
    struct stat st;
    char *path = path_join(folder, name);
    int rc = stat(path, &st) ? err_errno(e, "cannot read %s", path) : 0;
    json_t *sum = NULL;
    if (!rc && full)
        rc = content_hash(path, &sum, e);
    if (!rc) {
        json_t *o = json_pack("{s:s, s:I, s:I}", "name", name, "bytes", (json_int_t)st.st_size, "mtime_ns",
                              (json_int_t)mtime_ns(&st));
        if (sum)
            json_object_set(o, "sha256", sum);
        json_array_append_new(list, o);
    }
    json_decref(sum);
    xfree(path);
    return rc;
}

/* The folder of the weights, absolute, and the file's name in it if the checkpoint is named by one. A link
 * may lead to a name without extension, elsewhere (caches do that): it is the link that counts. */
static int place_of(const struct checkpoint *c, char **ret_folder, char **ret_name, struct err *e)
{
    const char *path = checkpoint_path(c), *slash = strrchr(path, '/');
    bool folder = path_is_dir(path);
    char *dir = folder ? xstrdup(path) : slash ? xstrndup(path, (size_t)MAX(slash - path, 1)) : xstrdup(".");
    char real[PATH_MAX];
    int rc = realpath(dir, real) ? 0 : err_errno(e, "cannot find %s", dir);
    if (!rc) {
        *ret_folder = xstrdup(real);
        *ret_name = folder ? NULL : xstrdup(slash ? slash + 1 : path);
    }
    xfree(dir);
    return rc;
}

int source_describe(const struct checkpoint *c, bool full, json_t **ret, struct err *e)
{
    char *folder = NULL, *name = NULL;
    json_t *files = json_array(), *hash = NULL;
    int rc = place_of(c, &folder, &name, e);
    if (!rc)
        rc = hash_of(c, folder, &hash, e);
    char *config = rc ? NULL : path_join(folder, "config.json");
    if (!rc && !checkpoint_gguf(c) && path_is_file(config))
        rc = describe_file(folder, "config.json", full, files, e);
    for (int i = 0; i < checkpoint_n_files(c) && !rc; i++)
        rc = describe_file(folder, checkpoint_file_name(c, i), full, files, e);
    if (!rc) {
        *ret = json_pack("{s:s, s:O, s:O}", "path", folder, "hash", hash, "files", files);
        if (name)
            json_object_set_new(*ret, "file", json_string(name));
    }
    json_decref(files);
    json_decref(hash);
    xfree(config);
    xfree(folder);
    xfree(name);
    return rc;
}

static int changed(const char *path, const char *how, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s has changed since: %s", path, how);
}

/* Opens the source again and compares hashes: the slow way, taken where times differ. */
static int compare_hashes(const json_t *record, const char *path, const char *config_dir, struct err *e)
{
    struct checkpoint *c = NULL;
    struct err why = {0};
    const char *file = json_string_value(json_object_get(record, "file"));
    char *full = file ? path_join(path, file) : xstrdup(path);
    char *config = path_join(path, "config.json");
    json_t *hash = NULL;
    int rc = checkpoint_open_with(full, path_is_file(config) ? NULL : config_dir, NULL, &c, &why);
    if (!rc)
        rc = hash_of(c, path, &hash, &why);
    if (rc)
        rc = changed(path, why.msg, e);
    else if (!json_equal(hash, json_object_get(record, "hash")))
        rc = changed(path, "other tensors, other weights or another configuration", e);
    json_decref(hash);
    checkpoint_close(c);
    xfree(config);
    xfree(full);
    return rc;
}

static int compare_content(const char *path, const json_t *x, struct err *e)
{
    json_t *sum = NULL;
    if (!json_object_get(x, "sha256"))
        return 0;
    int rc = content_hash(path, &sum, e);
    if (!rc && !json_equal(sum, json_object_get(x, "sha256")))
        rc = changed(path, "its SHA-256 differs", e);
    json_decref(sum);
    return rc;
}

int source_compare(const json_t *record, const char *config_dir, bool full, enum source_state *ret,
                   struct err *e)
{
    const char *path = json_string_value(json_object_get(record, "path"));
    size_t i;
    json_t *x;
    bool touched = false;
    int rc = 0;
    *ret = SOURCE_AWAY;
    if (!path || !path_is_dir(path))
        return 0;
    size_t there = 0;
    json_array_foreach(json_object_get(record, "files"), i, x)
    {
        const char *name = json_string_value(json_object_get(x, "name"));
        struct stat st;
        char how[160], *p = name && !strchr(name, '/') ? path_join(path, name) : NULL;
        bool found = p && !stat(p, &st);
        int64_t bytes = json_integer_value(json_object_get(x, "bytes"));
        there += found;
        if (!found) {
            touched = true;
        } else if (st.st_size != bytes && strcmp(name, "config.json")) {
            snprintf(how, sizeof(how), "it has %lld bytes, and had %lld", (long long)st.st_size,
                     (long long)bytes);
            rc = changed(p, how, e);
        } else if (st.st_size != bytes ||
                   mtime_ns(&st) != json_integer_value(json_object_get(x, "mtime_ns"))) {
            touched = true;
        }
        if (!rc && full && found)
            rc = compare_content(p, x, e);
        xfree(p);
        if (rc)
            return rc;
    }
    if (!there) /* the folder is another one's now, or empty */
        return 0;
    if (touched)
        rc = compare_hashes(record, path, config_dir, e);
    if (!rc)
        *ret = SOURCE_SAME;
    return rc;
}

/* gguf.c: see gguf.h. The layout, all little-endian:
 *
 *     "GGUF" u32 version, u64 n_tensors, u64 n_keys,
 *     n_keys   x { string key, u32 type, value },
 *     n_tensors x { string name, u32 n_dims, u64 dim[n_dims] (innermost first), u32 type, u64 offset },
 *     padding to general.alignment (32), tensor data; offsets count from here.
 *
 * A string is u64 length and bytes; an array is u32 type, u64 length, elements.
 *
 * How long the header is shows only at its end, so it is read in growing pieces, as the parser asks for
 * bytes; what is kept are offsets into that growing buffer. Strings are kept in place: each is moved one byte
 * back, over the end of its own length field, which makes room for a 0 behind it.
 */
#include "formats/gguf.h"

#include <stdio.h>
#include <string.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "formats/common.h"

#define HEADER_MAX  ((uint64_t)512 << 20) /* the largest seen (a 260k-word vocabulary) has 16 MB */
#define KEYS_MAX    65536
#define TENSORS_MAX ((uint64_t)1 << 20)
#define NESTING_MAX 4

struct ref { /* a string in g->head, 0-terminated */
    uint32_t off, len;
};

struct kv {
    struct ref key;
    uint8_t type, elem; /* enum gguf_type; elem if it is an array */
    uint64_t n;         /* of elements; 1 if it is no array */
    uint64_t at;        /* of the first value in g->head; strings: in g->str */
};

struct gguf {
    char *path;
    struct file file;   /* open while parsing */
    const uint8_t *mem; /* instead of a file */
    uint64_t size;
    uint64_t kv_end; /* where the metadata ends in the file */
    uint8_t *head;   /* the file's first n_head bytes, strings as said above */
    uint64_t n_head;
    struct ref *str;
    size_t n_str, cap_str;
    struct kv *kv;
    size_t n_kv, cap_kv;
    struct gguf_tensor *tensor;
    size_t n_tensor, cap_tensor;
    struct names keys, tensors;
};

/* The parser's place. `what` names what is being read, for messages. */
struct reader {
    struct gguf *g;
    uint64_t pos;
    char what[96 + NAME_MAX_BYTES];
    struct err *e;
};

static const struct {
    const char *name;
    uint8_t size; /* 0: not fixed */
} types[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

/* ggml's numbers of tensor types. Those without a dtype are known by name only, so that the refusal can say
 * what was found. */
static const struct {
    const char *name;
    enum dtype dtype;
} tensor_types[] = {
    [0] = {"F32", DT_F32},    [1] = {"F16", DT_F16},   [2] = {"Q4_0", DT_Q4_0},  [3] = {"Q4_1", DT_Q4_1},
    [6] = {"Q5_0", DT_Q5_0},  [7] = {"Q5_1", DT_Q5_1}, [8] = {"Q8_0", DT_Q8_0},  [9] = {"Q8_1", 0},
    [10] = {"Q2_K", 0},       [11] = {"Q3_K", 0},      [12] = {"Q4_K", DT_Q4_K}, [13] = {"Q5_K", DT_Q5_K},
    [14] = {"Q6_K", DT_Q6_K}, [15] = {"Q8_K", 0},      [16] = {"IQ2_XXS", 0},    [17] = {"IQ2_XS", 0},
    [18] = {"IQ3_XXS", 0},    [19] = {"IQ1_S", 0},     [20] = {"IQ4_NL", 0},     [21] = {"IQ3_S", 0},
    [22] = {"IQ2_S", 0},      [23] = {"IQ4_XS", 0},    [24] = {"I8", DT_I8},     [25] = {"I16", DT_I16},
    [26] = {"I32", DT_I32},   [27] = {"I64", DT_I64},  [28] = {"F64", DT_F64},   [29] = {"IQ1_M", 0},
    [30] = {"BF16", DT_BF16}, [34] = {"TQ1_0", 0},     [35] = {"TQ2_0", 0},      [39] = {"MXFP4", 0},
};

/* Makes bytes [pos, pos + n) present in g->head. */
static int need(struct reader *r, uint64_t n)
{
    struct gguf *g = r->g;
    if (n > g->size - r->pos)
        return err_set(r->e, ERR_FORMAT,
                       "%s: %s needs %llu bytes at offset %llu, but the file ends after %llu bytes "
                       "(a truncated download?)",
                       g->path, r->what, (unsigned long long)n, (unsigned long long)r->pos,
                       (unsigned long long)g->size);
    uint64_t end = r->pos + n;
    if (end <= g->n_head)
        return 0;
    if (end > HEADER_MAX)
        return err_set(r->e, ERR_LIMIT, "%s: %s would end at offset %llu; a header may have %llu bytes",
                       g->path, r->what, (unsigned long long)end, (unsigned long long)HEADER_MAX);
    uint64_t grown = MIN(MAX(end, MAX(2 * g->n_head, (uint64_t)1 << 18)), MIN(HEADER_MAX, g->size));
    g->head = xrealloc(g->head, (size_t)grown);
    if (g->mem) {
        memcpy(g->head + g->n_head, g->mem + g->n_head, (size_t)(grown - g->n_head));
    } else {
        int rc = file_read_at(&g->file, g->n_head, g->head + g->n_head, (size_t)(grown - g->n_head), r->e);
        if (rc)
            return rc;
    }
    g->n_head = grown;
    return 0;
}

static int read_u32(struct reader *r, uint32_t *ret)
{
    int rc = need(r, 4);
    if (!rc) {
        memcpy(ret, r->g->head + r->pos, 4);
        r->pos += 4;
    }
    return rc;
}

static int read_u64(struct reader *r, uint64_t *ret)
{
    int rc = need(r, 8);
    if (!rc) {
        memcpy(ret, r->g->head + r->pos, 8);
        r->pos += 8;
    }
    return rc;
}

static int read_string(struct reader *r, struct ref *ret)
{
    uint64_t n;
    int rc = read_u64(r, &n);
    if (!rc)
        rc = need(r, n);
    if (rc)
        return rc;
    uint8_t *p = r->g->head + r->pos; /* below HEADER_MAX, so offsets fit 32 bits */
    memmove(p - 1, p, (size_t)n);
    p[(int64_t)n - 1] = 0;
    *ret = (struct ref){(uint32_t)(r->pos - 1), (uint32_t)n};
    r->pos += n;
    return 0;
}

static const char *ref_chars(const struct gguf *g, struct ref s)
{
    return (const char *)g->head + s.off;
}

static int read_name(struct reader *r, const char *kind, uint64_t i, struct ref *ret)
{
    snprintf(r->what, sizeof(r->what), "the name of %s %llu", kind, (unsigned long long)i);
    int rc = read_string(r, ret);
    if (rc)
        return rc;
    const char *wrong = name_check(ref_chars(r->g, *ret), ret->len);
    if (wrong)
        return err_set(r->e, ERR_FORMAT, "%s: %s %s", r->g->path, r->what, wrong);
    snprintf(r->what, sizeof(r->what), "%s \"%s\"", kind, ref_chars(r->g, *ret));
    return 0;
}

static int read_type(struct reader *r, uint8_t *ret)
{
    uint32_t t;
    int rc = read_u32(r, &t);
    if (rc)
        return rc;
    if (t >= ARRAY_LEN(types))
        return err_set(r->e, ERR_FORMAT, "%s: %s has value type %u; GGUF knows 0 (u8) to 12 (f64)",
                       r->g->path, r->what, t);
    *ret = (uint8_t)t;
    return 0;
}

/* n values of one type, at r->pos. Leaves in kv->at where they start, unless kv is NULL. */
static int read_values(struct reader *r, uint8_t type, uint64_t n, struct kv *kv, int depth)
{
    struct gguf *g = r->g;
    /* Of a string at least the length is there, of an array its type and length: a count that does not fit
     * is refused before anything is done n times. */
    uint64_t least = types[type].size ? types[type].size : type == GGUF_STRING ? 8 : 12;
    if (n > (g->size - r->pos) / least)
        return err_set(
            r->e, ERR_FORMAT,
            "%s: %s claims %llu values of type %s, more than the rest of the file (%llu bytes) can hold",
            g->path, r->what, (unsigned long long)n, types[type].name,
            (unsigned long long)(g->size - r->pos));
    int rc = 0;
    if (type == GGUF_STRING) {
        if (kv)
            kv->at = g->n_str;
        for (uint64_t i = 0; i < n && !rc; i++) {
            struct ref s;
            rc = read_string(r, &s);
            if (!rc && kv) {
                XGROW(g->str, g->n_str, g->cap_str);
                g->str[g->n_str++] = s;
            }
        }
        return rc;
    }
    if (type == GGUF_ARRAY) {
        /* The specification allows arrays of arrays; nobody writes them. They are walked over. */
        if (depth >= NESTING_MAX)
            return err_set(r->e, ERR_FORMAT, "%s: %s has arrays nested deeper than %d", g->path, r->what,
                           NESTING_MAX);
        for (uint64_t i = 0; i < n && !rc; i++) {
            uint8_t elem = 0;
            uint64_t len = 0;
            rc = read_type(r, &elem);
            if (!rc)
                rc = read_u64(r, &len);
            if (!rc)
                rc = read_values(r, elem, len, NULL, depth + 1);
        }
        return rc;
    }
    rc = need(r, n * types[type].size);
    if (rc)
        return rc;
    if (kv)
        kv->at = r->pos;
    if (type == GGUF_BOOL)
        for (uint64_t i = 0; i < n; i++)
            if (g->head[r->pos + i] > 1)
                return err_set(r->e, ERR_FORMAT,
                               "%s: %s is of type bool, but has the value %d; legal are 0 and 1", g->path,
                               r->what, g->head[r->pos + i]);
    r->pos += n * types[type].size;
    return 0;
}

static int read_kv(struct reader *r, uint64_t i)
{
    struct kv kv = {.n = 1};
    int rc = read_name(r, "metadata key", i, &kv.key);
    if (!rc)
        rc = read_type(r, &kv.type);
    if (!rc && kv.type == GGUF_ARRAY) {
        rc = read_type(r, &kv.elem);
        if (!rc)
            rc = read_u64(r, &kv.n);
    }
    if (!rc)
        rc = read_values(r, kv.type == GGUF_ARRAY ? kv.elem : kv.type, kv.n, &kv, 0);
    if (rc)
        return rc;
    XGROW(r->g->kv, r->g->n_kv, r->g->cap_kv);
    r->g->kv[r->g->n_kv++] = kv;
    return 0;
}

static int unsupported_type(struct reader *r, uint32_t type)
{
    struct buf legal = BUF_INIT;
    for (size_t i = 0; i < ARRAY_LEN(tensor_types); i++)
        if (tensor_types[i].dtype && dtype_info(tensor_types[i].dtype)->weight)
            buf_addf(&legal, "%s%s", legal.len ? ", " : "", tensor_types[i].name);
    int rc;
    if (type < ARRAY_LEN(tensor_types) && tensor_types[type].name)
        rc =
            err_set(r->e, ERR_UNSUPPORTED, "%s: %s is quantised as %s, which yoke does not read; it reads %s",
                    r->g->path, r->what, tensor_types[type].name, legal.s);
    else
        rc = err_set(r->e, ERR_UNSUPPORTED, "%s: %s has the unknown type %u; yoke reads %s", r->g->path,
                     r->what, type, legal.s);
    buf_release(&legal);
    return rc;
}

/* Sizes of one tensor, overflow checked, whole blocks. */
static int tensor_bytes(struct reader *r, struct gguf_tensor *t)
{
    const struct dtype_info *d = dtype_info(t->dtype);
    uint64_t n = 1;
    bool fits = true;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->dim[i] <= 0)
            return err_set(r->e, ERR_FORMAT, "%s: %s has a dimension of %llu; legal are 1 to 2^63-1",
                           r->g->path, r->what, (unsigned long long)t->dim[i]);
        fits = fits && !__builtin_mul_overflow(n, (uint64_t)t->dim[i], &n);
    }
    int64_t row = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    if (row % d->block)
        return err_set(r->e, ERR_FORMAT, "%s: %s has rows of %lld elements, but %s stores blocks of %d",
                       r->g->path, r->what, (long long)row, d->name, d->block);
    fits = fits && !__builtin_mul_overflow(n / (uint64_t)d->block, (uint64_t)d->block_bytes, &t->n_bytes) &&
           t->n_bytes <= INT64_MAX;
    if (!fits)
        return err_set(r->e, ERR_FORMAT, "%s: %s claims more elements than can be counted", r->g->path,
                       r->what);
    return 0;
}

static int read_tensor(struct reader *r, uint64_t i)
{
    struct gguf *g = r->g;
    struct gguf_tensor t = {0};
    struct ref name;
    uint32_t n_dims = 0, type = 0;
    int rc = read_name(r, "tensor", i, &name);
    if (!rc)
        rc = read_u32(r, &n_dims);
    if (rc)
        return rc;
    if (n_dims > ARRAY_LEN(t.dim))
        return err_set(r->e, ERR_FORMAT, "%s: %s has %u dimensions; GGUF allows up to 4", g->path, r->what,
                       n_dims);
    t.n_dims = (int)n_dims;
    for (int j = t.n_dims - 1; j >= 0 && !rc; j--) {
        uint64_t dim = 0;
        rc = read_u64(r, &dim);
        t.dim[j] = (int64_t)dim; /* above INT64_MAX is negative, refused below */
    }
    if (!rc)
        rc = read_u32(r, &type);
    if (!rc)
        rc = read_u64(r, &t.offset);
    if (rc)
        return rc;
    if (type >= ARRAY_LEN(tensor_types) || !tensor_types[type].dtype)
        return unsupported_type(r, type);
    t.dtype = tensor_types[type].dtype;
    rc = tensor_bytes(r, &t);
    if (rc)
        return rc;
    XGROW(g->tensor, g->n_tensor, g->cap_tensor);
    XGROW(g->str, g->n_str, g->cap_str);
    g->str[g->n_str++] = name; /* becomes a pointer when the buffer has stopped moving */
    g->tensor[g->n_tensor++] = t;
    return 0;
}

/* From offsets within the data section to offsets within the file; range and overlap. */
static int place_tensors(struct gguf *g, uint64_t header_end, struct err *e)
{
    int64_t align = 32;
    if (!gguf_get_int(g, "general.alignment", &align) &&
        names_find(&g->keys, "general.alignment") != NAMES_NONE)
        return err_set(e, ERR_FORMAT, "%s: general.alignment is not an integer", g->path);
    if (align < 1 || align > UINT32_MAX || (align & (align - 1)))
        return err_set(e, ERR_FORMAT,
                       "%s: general.alignment is %lld; it should be a power of two, such as 32", g->path,
                       (long long)align);
    uint64_t start = ROUND_UP(header_end, (uint64_t)align);
    int rc = 0;
    struct extent *x;
    XNEW_N(x, g->n_tensor);
    for (size_t i = 0; i < g->n_tensor && !rc; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        if (t->offset % (uint64_t)align)
            rc = err_set(e, ERR_FORMAT,
                         "%s: tensor \"%s\" is at data offset %llu, which is no multiple of the "
                         "alignment, %lld",
                         g->path, t->name, (unsigned long long)t->offset, (long long)align);
        else if (start > g->size || t->offset > g->size - start || t->n_bytes > g->size - start - t->offset)
            rc = err_set(e, ERR_FORMAT,
                         "%s: tensor \"%s\" should have %llu bytes at data offset %llu, but the file's data "
                         "section has only %llu bytes (a truncated download?)",
                         g->path, t->name, (unsigned long long)t->n_bytes, (unsigned long long)t->offset,
                         (unsigned long long)(start > g->size ? 0 : g->size - start));
        t->offset += start;
        x[i] = (struct extent){t->offset, t->offset + t->n_bytes, i};
    }
    if (!rc)
        extents_sort(x, g->n_tensor);
    for (size_t i = 1; i < g->n_tensor && !rc; i++)
        if (x[i].begin < x[i - 1].end)
            rc = err_set(e, ERR_FORMAT,
                         "%s: tensors \"%s\" and \"%s\" overlap: the second starts at offset %llu, "
                         "before the first ends, at %llu",
                         g->path, g->tensor[x[i - 1].i].name, g->tensor[x[i].i].name,
                         (unsigned long long)x[i].begin, (unsigned long long)x[i - 1].end);
    xfree(x);
    return rc;
}

static int read_magic(struct reader *r)
{
    struct gguf *g = r->g;
    snprintf(r->what, sizeof(r->what), "the magic number");
    int rc = need(r, 4); /* and, as it reads in pieces, more than those 4 */
    if (rc)
        return rc;
    const char *known = bytes_known_mistake(g->head, (size_t)g->n_head);
    if (known)
        return err_set(r->e, ERR_FORMAT, "%s %s", g->path, known);
    if (memcmp(g->head, "GGUF", 4))
        return err_set(
            r->e, ERR_FORMAT,
            "%s is not a GGUF file: it starts with the bytes %02x %02x %02x %02x, not with \"GGUF\"", g->path,
            g->head[0], g->head[1], g->head[2], g->head[3]);
    r->pos = 4;
    snprintf(r->what, sizeof(r->what), "the version");
    uint32_t v;
    rc = read_u32(r, &v);
    if (rc)
        return rc;
    if (v == 2 || v == 3)
        return 0;
    if (__builtin_bswap32(v) >= 1 && __builtin_bswap32(v) <= 3)
        return err_set(r->e, ERR_UNSUPPORTED, "%s is a big-endian GGUF file; yoke reads little-endian ones",
                       g->path);
    return err_set(r->e, ERR_UNSUPPORTED, "%s has GGUF version %u; yoke reads versions 2 and 3", g->path, v);
}

/* A count of entries, each of at least `least` bytes. */
static int read_count(struct reader *r, const char *what, uint64_t least, uint64_t max, uint64_t *ret)
{
    snprintf(r->what, sizeof(r->what), "the number of %s", what);
    int rc = read_u64(r, ret);
    if (rc)
        return rc;
    if (*ret > (r->g->size - r->pos) / least)
        return err_set(r->e, ERR_FORMAT, "%s claims %llu %s, more than its %llu bytes can hold", r->g->path,
                       (unsigned long long)*ret, what, (unsigned long long)r->g->size);
    if (*ret > max)
        return err_set(r->e, ERR_LIMIT, "%s has %llu %s; at most %llu are read", r->g->path,
                       (unsigned long long)*ret, what, (unsigned long long)max);
    return 0;
}

static int parse(struct gguf *g, struct err *e)
{
    struct reader r = {.g = g, .e = e};
    uint64_t n_tensors = 0, n_keys = 0;
    const char *twice;
    int rc = read_magic(&r);
    if (!rc)
        rc = read_count(&r, "tensors", 8 + 1 + 4 + 4 + 8, TENSORS_MAX, &n_tensors);
    if (!rc)
        rc = read_count(&r, "metadata keys", 8 + 1 + 4 + 1, KEYS_MAX, &n_keys);
    for (uint64_t i = 0; i < n_keys && !rc; i++)
        rc = read_kv(&r, i);
    g->kv_end = r.pos;
    size_t first_name = g->n_str;
    for (uint64_t i = 0; i < n_tensors && !rc; i++)
        rc = read_tensor(&r, i);
    if (rc)
        return rc;

    for (size_t i = 0; i < g->n_kv; i++)
        names_add(&g->keys, ref_chars(g, g->kv[i].key), i);
    twice = names_sort(&g->keys);
    if (twice)
        return err_set(e, ERR_FORMAT, "%s has metadata key \"%s\" twice", g->path, twice);
    for (size_t i = 0; i < g->n_tensor; i++) {
        g->tensor[i].name = ref_chars(g, g->str[first_name + i]);
        names_add(&g->tensors, g->tensor[i].name, i);
    }
    twice = names_sort(&g->tensors);
    if (twice)
        return err_set(e, ERR_FORMAT, "%s has tensor \"%s\" twice", g->path, twice);
    return place_tensors(g, r.pos, e);
}

static int open_parsed(struct gguf *g, struct gguf **ret, struct err *e)
{
    int rc = parse(g, e);
    file_close(&g->file);
    g->mem = NULL;
    if (rc)
        gguf_close(g);
    else
        *ret = g;
    return rc;
}

int gguf_open(const char *path, struct gguf **ret, struct err *e)
{
    struct gguf *g;
    XNEW(g);
    g->path = xstrdup(path);
    int rc = file_open(&g->file, path, e);
    if (rc) {
        gguf_close(g);
        return rc;
    }
    g->size = g->file.size;
    return open_parsed(g, ret, e);
}

int gguf_open_bytes(const void *data, size_t size, const char *where, struct gguf **ret, struct err *e)
{
    struct gguf *g;
    XNEW(g);
    g->path = xstrdup(where);
    g->file = (struct file)FILE_INIT;
    g->mem = data;
    g->size = size;
    return open_parsed(g, ret, e);
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    file_close(&g->file);
    names_release(&g->keys);
    names_release(&g->tensors);
    xfree(g->tensor);
    xfree(g->kv);
    xfree(g->str);
    xfree(g->head);
    xfree(g->path);
    xfree(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

static const struct kv *find_kv(const struct gguf *g, const char *key)
{
    size_t i = names_find(&g->keys, key);
    return i == NAMES_NONE ? NULL : &g->kv[i];
}

/* One numeric element as an integer or as a double; false if its type is another, or it does not fit. */
static bool value_int(const struct gguf *g, uint8_t type, uint64_t at, int64_t *ret)
{
    const uint8_t *p = g->head + at;
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v;
    if (type == GGUF_F32 || type == GGUF_F64 || type == GGUF_BOOL || !types[type].size)
        return false;
    memcpy(&v, p, types[type].size);
    switch (type) {
    case GGUF_U8:
        *ret = v.u8;
        return true;
    case GGUF_I8:
        *ret = v.i8;
        return true;
    case GGUF_U16:
        *ret = v.u16;
        return true;
    case GGUF_I16:
        *ret = v.i16;
        return true;
    case GGUF_U32:
        *ret = v.u32;
        return true;
    case GGUF_I32:
        *ret = v.i32;
        return true;
    case GGUF_I64:
        *ret = v.i64;
        return true;
    default:
        if (v.u64 > INT64_MAX)
            return false;
        *ret = (int64_t)v.u64;
        return true;
    }
}

static bool value_double(const struct gguf *g, uint8_t type, uint64_t at, double *ret)
{
    const uint8_t *p = g->head + at;
    if (type == GGUF_F32) {
        float f;
        memcpy(&f, p, 4);
        *ret = f;
        return true;
    }
    if (type == GGUF_F64) {
        memcpy(ret, p, 8);
        return true;
    }
    if (type == GGUF_U64) {
        uint64_t u;
        memcpy(&u, p, 8);
        *ret = (double)u;
        return true;
    }
    int64_t i;
    if (!value_int(g, type, at, &i))
        return false;
    *ret = (double)i;
    return true;
}

bool gguf_get_int(const struct gguf *g, const char *key, int64_t *ret)
{
    const struct kv *kv = find_kv(g, key);
    return kv && value_int(g, kv->type, kv->at, ret);
}

bool gguf_get_double(const struct gguf *g, const char *key, double *ret)
{
    const struct kv *kv = find_kv(g, key);
    return kv && value_double(g, kv->type, kv->at, ret);
}

bool gguf_get_bool(const struct gguf *g, const char *key, bool *ret)
{
    const struct kv *kv = find_kv(g, key);
    if (!kv || kv->type != GGUF_BOOL)
        return false;
    *ret = g->head[kv->at];
    return true;
}

static struct gguf_str get_ref(const struct gguf *g, uint64_t i)
{
    return (struct gguf_str){ref_chars(g, g->str[i]), g->str[i].len};
}

bool gguf_get_string(const struct gguf *g, const char *key, struct gguf_str *ret)
{
    const struct kv *kv = find_kv(g, key);
    if (!kv || kv->type != GGUF_STRING)
        return false;
    *ret = get_ref(g, kv->at);
    return true;
}

bool gguf_get_array(const struct gguf *g, const char *key, enum gguf_type *ret_type, size_t *ret_n)
{
    const struct kv *kv = find_kv(g, key);
    if (!kv || kv->type != GGUF_ARRAY)
        return false;
    *ret_type = (enum gguf_type)kv->elem;
    *ret_n = (size_t)kv->n;
    return true;
}

static const struct kv *find_element(const struct gguf *g, const char *key, size_t i)
{
    const struct kv *kv = find_kv(g, key);
    return kv && kv->type == GGUF_ARRAY && i < kv->n ? kv : NULL;
}

bool gguf_array_string(const struct gguf *g, const char *key, size_t i, struct gguf_str *ret)
{
    const struct kv *kv = find_element(g, key, i);
    if (!kv || kv->elem != GGUF_STRING)
        return false;
    *ret = get_ref(g, kv->at + i);
    return true;
}

bool gguf_array_int(const struct gguf *g, const char *key, size_t i, int64_t *ret)
{
    const struct kv *kv = find_element(g, key, i);
    return kv && value_int(g, kv->elem, kv->at + i * types[kv->elem].size, ret);
}

bool gguf_array_double(const struct gguf *g, const char *key, size_t i, double *ret)
{
    const struct kv *kv = find_element(g, key, i);
    return kv && value_double(g, kv->elem, kv->at + i * types[kv->elem].size, ret);
}

size_t gguf_n_keys(const struct gguf *g)
{
    return g->n_kv;
}

const char *gguf_key(const struct gguf *g, size_t i)
{
    return ref_chars(g, g->kv[i].key);
}

int gguf_metadata_only(const struct gguf *g, struct buf *out, struct err *e)
{
    struct file f;
    size_t at = out->len, n = (size_t)g->kv_end;
    int rc = file_open(&f, g->path, e);
    if (rc)
        return rc;
    buf_reserve(out, n);
    rc = file_read_at(&f, 0, out->s + at, n, e);
    file_close(&f);
    if (rc)
        return rc;
    memset(out->s + at + 8, 0, 8); /* the number of tensors */
    out->len = at + n;
    out->s[out->len] = 0;
    return 0;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensor;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, size_t i)
{
    return &g->tensor[i];
}

const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name)
{
    size_t i = names_find(&g->tensors, name);
    return i == NAMES_NONE ? NULL : &g->tensor[i];
}

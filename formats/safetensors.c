/* safetensors.c: see safetensors.h. The layout:
 *
 *     u64 n (little-endian), n bytes of JSON, tensor data to the end of the file
 *
 * The JSON: { "__metadata__": { string: string }, name: { "dtype", "shape", "data_offsets": [begin, end] } },
 * offsets counting from the end of the JSON, which may be padded with spaces.
 */
#include "formats/safetensors.h"

#include <string.h>
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "formats/common.h"

#define HEADER_MAX 100000000u /* the reference's bound, too */

struct safetensors {
    char *where;
    json_t *root; /* owns the names */
    struct safetensor *tensor;
    size_t n;
    struct names names;
};

static const struct {
    const char *name;
    int bits;
    enum dtype dtype;
} dtypes[] = {
    {"F32", 32, DT_F32},         {"F16", 16, DT_F16},     {"BF16", 16, DT_BF16},
    {"F64", 64, DT_F64},         {"I64", 64, DT_I64},     {"I32", 32, DT_I32},
    {"I16", 16, DT_I16},         {"I8", 8, DT_I8},        {"U8", 8, DT_U8},
    {"BOOL", 8, DT_BOOL},        {"U64", 64, DT_NONE},    {"U32", 32, DT_NONE},
    {"U16", 16, DT_NONE},        {"C64", 64, DT_NONE},    {"F4", 4, DT_NONE},
    {"F8_E4M3", 8, DT_F8_E4M3},  {"F8_E5M2", 8, DT_NONE}, {"F8_E8M0", 8, DT_NONE},
    {"F6_E2M3", 6, DT_NONE},     {"F6_E3M2", 6, DT_NONE}, {"F8_E4M3FNUZ", 8, DT_NONE},
    {"F8_E5M2FNUZ", 8, DT_NONE},
};

static int bad_dtype(const struct safetensors *s, const char *name, const char *found, struct err *e)
{
    struct buf known = BUF_INIT;
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
        buf_addf(&known, "%s%s", i ? ", " : "", dtypes[i].name);
    int rc = err_set(e, ERR_FORMAT, "%s: tensor \"%s\" has the unknown dtype \"%.64s\"; safetensors has %s",
                     s->where, name, name_check(found, strlen(found)) ? "(unprintable)" : found, known.s);
    buf_release(&known);
    return rc;
}

/* An integer that is not negative (jansson refuses those above 2^63 - 1). */
static int get_size(const json_t *v, int64_t *ret)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0)
        return 0;
    *ret = json_integer_value(v);
    return 1;
}

/* dtype, shape and data_offsets of one tensor, and whether they agree; the offset is still the data
 * section's. */
static int read_tensor(const struct safetensors *s, const char *name, const json_t *v, struct safetensor *ret,
                       struct err *e)
{
    struct safetensor t = {.name = name};
    const json_t *dtype = json_object_get(v, "dtype"), *shape = json_object_get(v, "shape"),
                 *range = json_object_get(v, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(range) ||
        json_array_size(range) != 2)
        return err_set(e, ERR_FORMAT,
                       "%s: tensor \"%s\" should be {\"dtype\": string, \"shape\": [integers], "
                       "\"data_offsets\": [begin, end]}, but is not",
                       s->where, name);
    size_t k = 0;
    while (k < ARRAY_LEN(dtypes) && strcmp(dtypes[k].name, json_string_value(dtype)))
        k++;
    if (k == ARRAY_LEN(dtypes))
        return bad_dtype(s, name, json_string_value(dtype), e);
    t.dtype = dtypes[k].dtype;
    t.dtype_name = dtypes[k].name;

    if (json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" has %zu dimensions; up to %d are read",
                       s->where, name, json_array_size(shape), SAFETENSORS_DIMS_MAX);
    t.n_dims = (int)json_array_size(shape);
    uint64_t bits = (uint64_t)dtypes[k].bits;
    int fits = 1;
    for (int i = 0; i < t.n_dims; i++) {
        if (!get_size(json_array_get(shape, (size_t)i), &t.dim[i]))
            return err_set(e, ERR_FORMAT, "%s: dimension %d of tensor \"%s\" is not an integer of 0 or more",
                           s->where, i, name);
        fits = fits && !__builtin_mul_overflow(bits, (uint64_t)t.dim[i], &bits);
    }
    int64_t begin, end;
    if (!get_size(json_array_get(range, 0), &begin) || !get_size(json_array_get(range, 1), &end) ||
        begin > end)
        return err_set(e, ERR_FORMAT,
                       "%s: \"data_offsets\" of tensor \"%s\" should be two integers, 0 <= begin <= end",
                       s->where, name);
    if (!fits)
        return err_set(e, ERR_FORMAT, "%s: the shape of tensor \"%s\" has more elements than can be counted",
                       s->where, name);
    if (bits % 8 || bits / 8 != (uint64_t)(end - begin))
        return err_set(
            e, ERR_FORMAT,
            "%s: tensor \"%s\" of dtype %s needs %llu bytes for its shape, but its data_offsets span "
            "%lld bytes",
            s->where, name, t.dtype_name, (unsigned long long)(bits / 8), (long long)(end - begin));
    t.offset = (uint64_t)begin;
    t.n_bytes = (uint64_t)(end - begin);
    *ret = t;
    return 0;
}

/* Orders the tensors by their bytes and checks that these fill [0, data_size) without overlap or hole. */
static int place_tensors(struct safetensors *s, uint64_t header_end, uint64_t data_size, struct err *e)
{
    struct extent *x;
    struct safetensor *sorted;
    XNEW_N(x, s->n);
    XNEW_N(sorted, s->n);
    for (size_t i = 0; i < s->n; i++)
        x[i] = (struct extent){s->tensor[i].offset, s->tensor[i].offset + s->tensor[i].n_bytes, i};
    extents_sort(x, s->n);
    uint64_t at = 0;
    int rc = 0;
    for (size_t i = 0; i < s->n && !rc; i++) {
        const struct safetensor *t = &s->tensor[x[i].i];
        if (x[i].end > data_size)
            rc = err_set(
                e, ERR_FORMAT,
                "%s: tensor \"%s\" should end at data offset %llu, but the file has only %llu bytes of "
                "data (a truncated download?)",
                s->where, t->name, (unsigned long long)x[i].end, (unsigned long long)data_size);
        else if (x[i].begin < at)
            rc = err_set(e, ERR_FORMAT,
                         "%s: tensors \"%s\" and \"%s\" overlap: the second starts at data offset "
                         "%llu, before the first ends, at %llu",
                         s->where, sorted[i - 1].name, t->name, (unsigned long long)x[i].begin,
                         (unsigned long long)at);
        else if (x[i].begin > at)
            rc = err_set(e, ERR_FORMAT,
                         "%s: the bytes before tensor \"%s\", data offsets %llu to %llu, belong to no "
                         "tensor; safetensors allows no holes",
                         s->where, t->name, (unsigned long long)at, (unsigned long long)x[i].begin);
        at = x[i].end;
        sorted[i] = *t;
        sorted[i].offset += header_end;
    }
    if (!rc && at != data_size)
        rc = err_set(e, ERR_FORMAT,
                     "%s: the tensors end at data offset %llu, but the file has %llu bytes of data", s->where,
                     (unsigned long long)at, (unsigned long long)data_size);
    xfree(s->tensor);
    s->tensor = sorted;
    xfree(x);
    return rc;
}

static int read_metadata(const struct safetensors *s, const json_t *v, struct err *e)
{
    const char *key;
    json_t *value;
    int strings = json_is_object(v);
    if (strings)
        json_object_foreach((json_t *)v, key, value) strings = strings && json_is_string(value);
    if (!strings)
        return err_set(e, ERR_FORMAT, "%s: \"__metadata__\" should be an object of strings", s->where);
    return 0;
}

static int parse(struct safetensors *s, const char *json, size_t n, uint64_t data_size, struct err *e)
{
    json_error_t je;
    const char *name;
    json_t *v;
    if (n == 0 || json[0] != '{')
        return err_set(e, ERR_FORMAT, "%s: the header should be a JSON object, but does not start with \"{\"",
                       s->where);
    s->root = json_loadb(json, n, JSON_REJECT_DUPLICATES, &je);
    if (!s->root)
        return err_set(e, ERR_FORMAT, "%s: the header is not valid JSON: line %d, column %d: %s", s->where,
                       je.line, je.column, je.text);
    XNEW_N(s->tensor, json_object_size(s->root));
    json_object_foreach(s->root, name, v)
    {
        int rc;
        const char *wrong = name_check(name, strlen(name));
        if (!strcmp(name, "__metadata__"))
            rc = read_metadata(s, v, e);
        else if (wrong)
            rc = err_set(e, ERR_FORMAT, "%s: the name of tensor %zu %s", s->where, s->n, wrong);
        else
            rc = read_tensor(s, name, v, &s->tensor[s->n], e);
        if (rc)
            return rc;
        s->n += strcmp(name, "__metadata__") != 0;
    }
    int rc = place_tensors(s, 8 + n, data_size, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < s->n; i++)
        names_add(&s->names, s->tensor[i].name, i);
    names_sort(&s->names); /* that none is there twice, the parser has seen to */
    return 0;
}

/* What the first bytes of a file of this size say; the length of the JSON. */
static int read_start(const char *where, const uint8_t *start, size_t n_start, uint64_t size, uint64_t *ret,
                      struct err *e)
{
    const char *known = bytes_known_mistake(start, n_start);
    if (known)
        return err_set(e, ERR_FORMAT, "%s %s", where, known);
    if (size < 8)
        return err_set(e, ERR_FORMAT,
                       "%s has %llu bytes, too few for a safetensors file (a truncated download?)", where,
                       (unsigned long long)size);
    uint64_t n;
    memcpy(&n, start, 8);
    if (n > HEADER_MAX)
        return err_set(e, ERR_FORMAT,
                       "%s is not a safetensors file: its header would have %llu bytes; at most %u are legal",
                       where, (unsigned long long)n, HEADER_MAX);
    if (n > size - 8)
        return err_set(
            e, ERR_FORMAT,
            "%s: the header should have %llu bytes, but the file has only %llu (a truncated download?)",
            where, (unsigned long long)n, (unsigned long long)size);
    *ret = n;
    return 0;
}

static int finish(struct safetensors *s, int rc, struct safetensors **ret)
{
    if (rc)
        safetensors_close(s);
    else
        *ret = s;
    return rc;
}

int safetensors_open_bytes(const void *data, size_t size, const char *where, struct safetensors **ret,
                           struct err *e)
{
    struct safetensors *s;
    uint64_t n = 0;
    XNEW(s);
    s->where = xstrdup(where);
    int rc = read_start(where, data, size, size, &n, e);
    if (!rc)
        rc = parse(s, (const char *)data + 8, (size_t)n, size - 8 - n, e);
    return finish(s, rc, ret);
}

int safetensors_open(const char *path, struct safetensors **ret, struct err *e)
{
    struct safetensors *s;
    struct file f;
    struct buf json = BUF_INIT;
    uint8_t start[32];
    uint64_t n = 0;
    XNEW(s);
    s->where = xstrdup(path);
    int rc = file_open(&f, path, e);
    if (rc)
        return finish(s, rc, ret);
    size_t n_start = (size_t)MIN(f.size, sizeof(start));
    rc = file_read_at(&f, 0, start, n_start, e);
    if (!rc)
        rc = read_start(path, start, n_start, f.size, &n, e);
    if (!rc) {
        buf_reserve(&json, (size_t)n);
        rc = file_read_at(&f, 8, json.s, (size_t)n, e);
    }
    if (!rc)
        rc = parse(s, json.s, (size_t)n, f.size - 8 - n, e);
    buf_release(&json);
    file_close(&f);
    return finish(s, rc, ret);
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    names_release(&s->names);
    xfree(s->tensor);
    json_decref(s->root);
    xfree(s->where);
    xfree(s);
}

size_t safetensors_n_tensors(const struct safetensors *s)
{
    return s->n;
}

const struct safetensor *safetensors_tensor(const struct safetensors *s, size_t i)
{
    return &s->tensor[i];
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
    size_t i = names_find(&s->names, name);
    return i == NAMES_NONE ? NULL : &s->tensor[i];
}

const json_t *safetensors_metadata(const struct safetensors *s)
{
    return json_object_get(s->root, "__metadata__");
}

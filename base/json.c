#include "base/json.h"

#include <math.h>
#include "base/buf.h"
#include "base/file.h"

int json_parse(const char *text, size_t n, const char *where, json_t **ret, struct err *e)
{
    json_error_t je;
    json_t *v = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je);
    if (!v)
        return err_set(e, ERR_FORMAT, "%s: line %d, column %d: %s", where, je.line, je.column, je.text);
    *ret = v;
    return 0;
}

int json_parse_file(const char *path, size_t max_bytes, json_t **ret, struct err *e)
{
    struct buf b = BUF_INIT;
    int rc = file_slurp(path, max_bytes, &b, e);
    if (!rc)
        rc = json_parse(b.s, b.len, path, ret, e);
    buf_release(&b);
    return rc;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {"an object",     "an array", "a string", "an integer",
                                        "a real number", "true",     "false",    "null"};
    return v ? names[json_typeof(v)] : "nothing";
}

static const json_t *lookup(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static int wrong(const char *where, const char *key, const char *expected, const json_t *found, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: \"%s\" should be %s, but is %s", where, key, expected,
                   type_name(found));
}

int json_get_int(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t fallback,
                 const char *where, int64_t *ret, struct err *e)
{
    const json_t *v = lookup(o, key);
    int64_t n = fallback;
    if (v) {
        if (json_is_integer(v)) {
            n = json_integer_value(v);
        } else if (json_is_real(v) && floor(json_real_value(v)) == json_real_value(v) &&
                   fabs(json_real_value(v)) < 9e15) {
            n = (int64_t)json_real_value(v);
        } else {
            return wrong(where, key, "an integer", v, e);
        }
        if (n < lo || n > hi)
            return err_set(e, ERR_FORMAT, "%s: \"%s\" is %lld, which is outside %lld..%lld", where, key,
                           (long long)n, (long long)lo, (long long)hi);
    }
    *ret = n;
    return 0;
}

int json_get_double(const json_t *o, const char *key, double fallback, const char *where, double *ret,
                    struct err *e)
{
    const json_t *v = lookup(o, key);
    if (v && !json_is_number(v))
        return wrong(where, key, "a number", v, e);
    *ret = v ? json_number_value(v) : fallback;
    return 0;
}

int json_get_bool(const json_t *o, const char *key, bool fallback, const char *where, bool *ret,
                  struct err *e)
{
    const json_t *v = lookup(o, key);
    if (v && !json_is_boolean(v))
        return wrong(where, key, "true or false", v, e);
    *ret = v ? json_is_true(v) : fallback;
    return 0;
}

int json_get_string(const json_t *o, const char *key, const char *fallback, const char *where,
                    const char **ret, struct err *e)
{
    const json_t *v = lookup(o, key);
    if (v && !json_is_string(v))
        return wrong(where, key, "a string", v, e);
    *ret = v ? json_string_value(v) : fallback;
    return 0;
}

static int add_bytes(const char *bytes, size_t n, void *out)
{
    buf_add(out, bytes, n);
    return 0;
}

void json_print(const json_t *v, size_t flags, struct buf *out)
{
    json_dump_callback(v, add_bytes, out, flags);
}

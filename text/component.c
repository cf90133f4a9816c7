#include "text/component.h"

#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "text/utf8.h"

static int read_sequence(const json_t *v, const char *list, component_fn *take, void *self, const char *where,
                         struct err *e)
{
    const json_t *parts = json_object_get(v, list), *part;
    size_t i;
    if (!json_is_array(parts))
        return err_set(e, ERR_FORMAT, "%s: \"%s\" should be an array", where, list);
    json_array_foreach(parts, i, part)
    {
        char *inner = xasprintf("%s: %s[%zu]", where, list, i);
        int rc = json_is_null(part) ? err_set(e, ERR_FORMAT, "%s is null", inner)
                                    : component_read(part, list, take, self, inner, e);
        xfree(inner);
        if (rc)
            return rc;
    }
    return 0;
}

int component_read(const json_t *v, const char *list, component_fn *take, void *self, const char *where,
                   struct err *e)
{
    const char *type;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_object(v))
        return err_set(e, ERR_FORMAT, "%s should be an object or null", where);
    int rc = json_get_string(v, "type", "", where, &type, e);
    if (rc)
        return rc;
    if (!strcmp(type, "Sequence"))
        return read_sequence(v, list, take, self, where, e);
    return take(self, v, type, where, e);
}

int component_character(const json_t *o, const char *key, const char *fallback, const char *where,
                        const char **ret, struct err *e)
{
    const char *s;
    size_t len = 0;
    int rc = json_get_string(o, key, fallback, where, &s, e);
    if (rc)
        return rc;
    if (*s)
        utf8_get(s, &len);
    if (!len || strlen(s) != len)
        return err_set(e, ERR_FORMAT, "%s: \"%s\" should be one character, but is \"%s\"", where, key, s);
    *ret = s;
    return 0;
}

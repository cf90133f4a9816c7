#include "cli/machine.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/mem.h"

char *machine_default_path(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache)
        return xasprintf("%s/yoke/bench.json", cache);
    return home && *home ? xasprintf("%s/.cache/yoke/bench.json", home) : NULL;
}

/* A positive number, if the key is there. */
static int get(const json_t *o, const char *key, const char *where, double *ret, struct err *e)
{
    double v;
    int rc = json_get_double(o, key, *ret, where, &v, e);
    if (rc)
        return rc;
    if (!(v > 0) || !isfinite(v))
        return err_set(e, ERR_FORMAT, "%s: \"%s\" should be a positive number", where, key);
    *ret = v;
    return 0;
}

static int read_machine(const json_t *o, const char *where, struct cost_machine *m, struct err *e)
{
    double cores = m->cores, host = m->host_read;
    const json_t *matmul = json_object_get(o, "matmul");
    int rc = json_is_object(o) ? 0 : err_set(e, ERR_FORMAT, "%s should be a JSON object", where);
    const struct {
        const char *key;
        double *to;
    } all[] = {{"cores", &cores},
               {"host_read", &host},
               {"core_read", &m->core_read},
               {"end_one_s", &m->end_one_s},
               {"end_many_s", &m->end_many_s},
               {"score_macs", &m->score_macs},
               {"attend_one", &m->attend_one},
               {"attend_many", &m->attend_many},
               {"row_bytes_s", &m->row_bytes_s},
               {"step_s", &m->step_s},
               {"barrier_s", &m->barrier_s},
               {"local_latency_s", &m->local.latency_s},
               {"local_bytes_s", &m->local.bytes_s}};
    for (size_t i = 0; i < ARRAY_LEN(all) && !rc; i++)
        rc = get(o, all[i].key, where, all[i].to, e);
    m->host_read = host;
    if (!rc && json_object_get(o, "host_read"))
        m->host_read = MAX(host * m->cores / cores, MIN(host, m->core_read));
    for (int t = 0; t < DT_COUNT && !rc; t++) {
        const json_t *one = json_object_get(matmul, dtype_name((enum dtype)t));
        if (one && !(rc = get(one, "one", where, &m->one[t], e)))
            rc = get(one, "many", where, &m->many[t], e);
    }
    return rc;
}

int machine_read(const char *path, struct cost_machine *m, struct err *e)
{
    json_t *o;
    int rc = json_parse_file(path, 1 << 20, &o, e);
    if (rc)
        return rc;
    rc = read_machine(o, path, m, e);
    json_decref(o);
    return rc;
}

json_t *machine_json(const struct cost_machine *m)
{
    json_t *matmul = json_object();
    for (int t = 0; t < DT_COUNT; t++)
        if (m->one[t] > 0)
            json_object_set_new(matmul, dtype_name((enum dtype)t),
                                json_pack("{s:f, s:f}", "one", m->one[t], "many", m->many[t]));
    json_t *o = json_pack("{s:i, s:o}", "cores", m->cores, "matmul", matmul);
    const struct {
        const char *key;
        double v;
    } all[] = {{"host_read", m->host_read},
               {"core_read", m->core_read},
               {"end_one_s", m->end_one_s},
               {"end_many_s", m->end_many_s},
               {"score_macs", m->score_macs},
               {"attend_one", m->attend_one},
               {"attend_many", m->attend_many},
               {"row_bytes_s", m->row_bytes_s},
               {"step_s", m->step_s},
               {"barrier_s", m->barrier_s},
               {"local_latency_s", m->local.latency_s},
               {"local_bytes_s", m->local.bytes_s}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        json_object_set_new(o, all[i].key, json_real(all[i].v));
    return o;
}

int machine_write(const char *path, const json_t *o, struct err *e)
{
    char *dir = xstrdup(path), *slash = strrchr(dir, '/');
    for (char *c = dir + 1; slash && c <= slash; c++)
        if (*c == '/') {
            *c = 0;
            mkdir(dir, 0777); /* if it fails, opening the file says so */
            *c = '/';
        }
    xfree(dir);
    return json_dump_file(o, path, JSON_INDENT(1)) ? err_errno(e, "cannot write %s", path) : 0;
}

int machine_parse_net(const char *text, struct cost_link *ret, struct err *e)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"Mb", 1e6 / 8}, {"Gb", 1e9 / 8}, {"MB", 1e6}, {"GB", 1e9}};
    static const struct {
        const char *unit;
        double s;
    } times[] = {{"us", 1e-6}, {"ms", 1e-3}};
    char *end;
    double v = strtod(text, &end), bytes = 0, late = 30e-6;
    for (size_t i = 0; i < ARRAY_LEN(units) && end != text; i++)
        if (!strncmp(end, units[i].unit, 2)) {
            bytes = v * units[i].bytes;
            end += 2;
            break;
        }
    if (bytes > 0 && !strncmp(end, "/s", 2))
        end += 2;
    if (bytes > 0 && *end == ',') {
        const char *from = end + 1;
        late = 0;
        v = strtod(from, &end);
        for (size_t i = 0; i < ARRAY_LEN(times) && end != from; i++)
            if (!strcmp(end, times[i].unit)) {
                late = v * times[i].s;
                end += 2;
                break;
            }
    }
    if (!(bytes > 0) || !isfinite(bytes) || !(late > 0) || !isfinite(late) || *end)
        return err_set(
            e, ERR_USAGE,
            "--net should be a rate such as 100Gb, 12.5GB or 1Gb, perhaps with the time of one message "
            "(100Gb,3us), but is \"%s\"",
            text);
    *ret = (struct cost_link){late, 0.9 * bytes};
    return 0;
}

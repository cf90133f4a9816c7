/* checkpoint.c: see checkpoint.h. Opening goes: find the files, read their directories, check these against
 * each other, take over the tensors. After that nothing changes but the files' page cache. */
#include "formats/checkpoint.h"

#include <assert.h>
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/common.h"
#include "formats/gguf.h"
#include "formats/gguf_names.h"
#include "formats/safetensors.h"
#include "formats/shardset.h"

#define CONFIG_MAX ((size_t)16 << 20)
#define INDEX_MAX  ((size_t)256 << 20)
#define FILES_MAX  10000

/* Strided reads. A piece of a row this long is read on its own; shorter ones come in one read with what lies
 * between them, up to a scratch buffer's size: one system call and one copy are cheaper than many calls. */
#define DIRECT_BYTES  ((size_t)64 << 10)
#define SCRATCH_BYTES ((size_t)4 << 20)

struct checkpoint {
    char *path;
    struct arena *names_arena;
    struct file *file;
    char **file_name; /* without the folder */
    int n_files, cap_files;
    struct safetensors **st; /* one a file, or NULL */
    struct gguf_parts gguf;  /* one a file, or n = 0 */
    struct shardset *set;    /* or NULL */
    const char *config_dir;  /* while opening: where the JSON files are, if not beside the weights */
    json_t *config, *generation_config;
    struct tensor *tensor;
    size_t n, cap;
    struct names names;
    uint64_t n_bytes;
};

/* A growing, sorted list of file names. */
struct list {
    char **v;
    size_t n, cap;
};

static void list_add(struct list *l, const char *s)
{
    XGROW(l->v, l->n, l->cap);
    l->v[l->n++] = xstrdup(s);
}

static bool list_has(const struct list *l, const char *s)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->v[i], s))
            return true;
    return false;
}

static void list_release(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        xfree(l->v[i]);
    xfree(l->v);
    *l = (struct list){0};
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "a, b, c and 7 more" */
static void list_print(const struct list *l, struct buf *out)
{
    const size_t few = 8;
    for (size_t i = 0; i < l->n && i < few; i++)
        buf_addf(out, "%s%.200s", i ? ", " : "", l->v[i]);
    if (l->n > few)
        buf_addf(out, " and %zu more", l->n - few);
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

static int list_folder(const char *path, struct list *ret, struct err *e)
{
    DIR *d = opendir(path);
    if (!d)
        return err_errno(e, "cannot open the folder %s", path);
    const struct dirent *entry;
    while ((entry = readdir(d)))
        if (entry->d_name[0] != '.')
            list_add(ret, entry->d_name);
    closedir(d);
    if (ret->n)
        qsort(ret->v, ret->n, sizeof(*ret->v), by_string);
    return 0;
}

/* "model-00002-of-00005.gguf" with that suffix: 2 and 5, and how long "model" is. */
static bool parse_part(const char *name, const char *suffix, int *ret_part, int *ret_count, size_t *ret_stem)
{
    size_t n = strlen(name), k = strlen(suffix);
    if (!has_suffix(name, suffix) || n < k + 15)
        return false;
    const char *p = name + n - k - 15; /* -00002-of-00005 */
    if (p[0] != '-' || strncmp(p + 6, "-of-", 4) || strspn(p + 1, "0123456789") != 5 ||
        strspn(p + 10, "0123456789") != 5)
        return false;
    *ret_part = atoi(p + 1);
    *ret_count = atoi(p + 10);
    *ret_stem = (size_t)(p - name);
    return true;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return xstrdup(".");
    return xstrndup(path, slash == path ? 1 : (size_t)(slash - path));
}

static int add_file(struct checkpoint *c, const char *path, struct err *e)
{
    struct file f;
    if (c->n_files >= FILES_MAX)
        return err_set(e, ERR_LIMIT, "%s consists of more than %d files", c->path, FILES_MAX);
    int rc = file_open(&f, path, e);
    if (rc)
        return rc;
    if (c->n_files == c->cap_files) {
        c->cap_files = c->cap_files ? 2 * c->cap_files : 8;
        c->file = xreallocarray(c->file, (size_t)c->cap_files, sizeof(*c->file));
        c->file_name = xreallocarray(c->file_name, (size_t)c->cap_files, sizeof(*c->file_name));
        c->st = xreallocarray(c->st, (size_t)c->cap_files, sizeof(*c->st));
        c->gguf.part = xreallocarray(c->gguf.part, (size_t)c->cap_files, sizeof(*c->gguf.part));
    }
    c->file[c->n_files] = f;
    c->file_name[c->n_files] = xstrdup(base_name(path));
    c->st[c->n_files] = NULL;
    c->gguf.part[c->n_files] = NULL;
    c->n_files++;
    return 0;
}

static void add_tensor(struct checkpoint *c, struct tensor t)
{
    XGROW(c->tensor, c->n, c->cap);
    c->tensor[c->n++] = t;
    c->n_bytes +=
        t.n_bytes; /* each lies in its file without overlap, so the sum is the files' sizes at most */
}

/* Names must be one tensor's only; `what` is how a file names them, for the message. */
static int index_tensors(struct checkpoint *c, struct err *e)
{
    for (size_t i = 0; i < c->n; i++)
        names_add(&c->names, c->tensor[i].name, i);
    const char *twice = names_sort(&c->names);
    if (!twice)
        return 0;
    int in[2], k = 0;
    for (size_t i = 0; i < c->n && k < 2; i++)
        if (!strcmp(c->tensor[i].name, twice))
            in[k++] = c->tensor[i].file;
    assert(k == 2);
    return err_set(e, ERR_FORMAT,
                   "%s: tensor \"%s\" is there twice, in %s and in %s; each should be in one file", c->path,
                   twice, c->file_name[in[0]], c->file_name[in[1]]);
}

/* Mixtral's hub files name the parts of an expert layer in their own way (block_sparse_moe.experts.N.w1);
 * transformers itself has since moved to the names that the other models use, and so do GGUF files here. */
static const char *plain_name(struct checkpoint *c, const char *name)
{
    static const char *const parts[][2] = {
        {".w1.", ".gate_proj."}, {".w2.", ".down_proj."}, {".w3.", ".up_proj."}};
    const char *moe = strstr(name, ".block_sparse_moe.");
    if (!moe)
        return name;
    const char *rest = moe + strlen(".block_sparse_moe");
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        const char *w = strstr(rest, parts[i][0]);
        if (w)
            return arena_printf(c->names_arena, "%.*s.mlp%.*s%s%s", (int)(moe - name), name, (int)(w - rest),
                                rest, parts[i][1], w + strlen(parts[i][0]));
    }
    return arena_printf(c->names_arena, "%.*s.mlp%s", (int)(moe - name), name, rest);
}

/* -- safetensors ------------------------------------------------------------------------------------------
 */

static int add_safetensors(struct checkpoint *c, const char *folder, const char *name, struct err *e)
{
    char *path = path_join(folder, name);
    int rc = add_file(c, path, e);
    struct safetensors *st = NULL;
    if (!rc)
        rc = safetensors_open(path, &st, e);
    xfree(path);
    if (rc)
        return rc;
    int file = c->n_files - 1;
    c->st[file] = st;
    for (size_t i = 0; i < safetensors_n_tensors(st); i++) {
        const struct safetensor *s = safetensors_tensor(st, i);
        struct tensor t = {.name = plain_name(c, s->name),
                           .dtype = s->dtype,
                           .n_dims = s->n_dims,
                           .n_bytes = s->n_bytes,
                           .file = file,
                           .offset = s->offset};
        if (s->n_dims > (int)ARRAY_LEN(t.dim))
            return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" has %d dimensions; yoke reads up to %zu",
                           c->file[file].path, s->name, s->n_dims, ARRAY_LEN(t.dim));
        memcpy(t.dim, s->dim, (size_t)s->n_dims * sizeof(t.dim[0]));
        add_tensor(c, t);
    }
    return 0;
}

/* A name of a file in the folder itself: an index that came from elsewhere must not lead out of it. */
static bool is_plain_file_name(const char *s)
{
    return !name_check(s, strlen(s)) && s[0] != '.' && !strchr(s, '/');
}

/* The files that the index names, each once, checked to be in the folder. */
static int files_of_index(const char *where, const json_t *map, const struct list *folder, struct list *ret,
                          struct err *e)
{
    const char *tensor;
    json_t *v;
    struct list absent = {0};
    struct names seen = {0};
    int rc = 0;
    if (!json_is_object(map) || !json_object_size(map))
        return err_set(e, ERR_FORMAT,
                       "%s: \"weight_map\" should be an object that names a file for each tensor", where);
    json_object_foreach((json_t *)map, tensor, v)
    {
        const char *file = json_string_value(v);
        if (!file || !is_plain_file_name(file)) {
            rc = err_set(e, ERR_FORMAT,
                         "%s: tensor \"%.200s\" should be given the name of a file in the same folder", where,
                         tensor);
            goto done;
        }
        names_add(&seen, file, 0);
    }
    names_sort(&seen);
    for (size_t i = 0; i < seen.n; i++) {
        if (i && !strcmp(seen.v[i - 1].name, seen.v[i].name))
            continue;
        list_add(list_has(folder, seen.v[i].name) ? ret : &absent, seen.v[i].name);
    }
    if (absent.n) {
        struct buf b = BUF_INIT;
        list_print(&absent, &b);
        rc = err_set(e, ERR_FORMAT, "%s names %zu file%s that %s not there: %s (an incomplete download?)",
                     where, absent.n, absent.n == 1 ? "" : "s", absent.n == 1 ? "is" : "are", b.s);
        buf_release(&b);
    }
done:
    list_release(&absent);
    names_release(&seen);
    return rc;
}

/* Every tensor of the index in the file it says, and the other way round. */
static int check_index(const struct checkpoint *c, const char *where, const json_t *map,
                       struct warn_sink *warn, struct err *e)
{
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)map, tensor, v)
    {
        const struct tensor *t = checkpoint_find(c, tensor);
        const char *file = json_string_value(v);
        if (!t)
            return err_set(e, ERR_FORMAT,
                           "%s says that tensor \"%.200s\" is in %s, but it is in none of the files", where,
                           tensor, file);
        if (strcmp(c->file_name[t->file], file))
            return err_set(e, ERR_FORMAT, "%s says that tensor \"%.200s\" is in %s, but it is in %s", where,
                           tensor, file, c->file_name[t->file]);
    }
    struct list extra = {0};
    for (size_t i = 0; i < c->n; i++)
        if (!json_object_get(map, c->tensor[i].name))
            list_add(&extra, c->tensor[i].name);
    if (extra.n) {
        struct buf b = BUF_INIT;
        list_print(&extra, &b);
        warn_to(warn, "%s does not name %zu tensor%s that the files hold: %s", where, extra.n,
                extra.n == 1 ? "" : "s", b.s);
        buf_release(&b);
    }
    list_release(&extra);
    return 0;
}

static int open_index(struct checkpoint *c, const char *folder, const char *name,
                      const struct list *in_folder, struct list *used, struct warn_sink *warn, struct err *e)
{
    char *where = path_join(folder, name);
    json_t *index = NULL;
    int rc = json_parse_file(where, INDEX_MAX, &index, e);
    const json_t *map = json_object_get(index, "weight_map");
    if (!rc)
        rc = files_of_index(where, map, in_folder, used, e);
    for (size_t i = 0; i < used->n && !rc; i++)
        rc = add_safetensors(c, folder, used->v[i], e);
    if (!rc)
        rc = index_tensors(c, e);
    if (!rc)
        rc = check_index(c, where, map, warn, e);
    json_decref(index);
    xfree(where);
    return rc;
}

/* Several files and no index: all of them, if their names do not say that some are missing. */
static int open_unindexed(struct checkpoint *c, const char *folder, const struct list *files,
                          struct warn_sink *warn, struct err *e)
{
    for (size_t i = 0; i < files->n; i++) {
        int part, count;
        size_t stem;
        if (!parse_part(files->v[i], ".safetensors", &part, &count, &stem))
            continue;
        int there = 0;
        for (size_t j = 0; j < files->n; j++) {
            int other, other_count;
            size_t other_stem;
            there += parse_part(files->v[j], ".safetensors", &other, &other_count, &other_stem) &&
                     other_count == count && other_stem == stem && !memcmp(files->v[i], files->v[j], stem);
        }
        if (there != count)
            return err_set(e, ERR_FORMAT,
                           "%s: by its name, %s is one of %d files, but only %d %s, without "
                           "model.safetensors.index.json (an incomplete download, or a file's path where the "
                           "folder's was meant?)",
                           folder, files->v[i], count, there, there == 1 ? "was found" : "were found");
    }
    if (files->n > 1)
        warn_to(warn,
                "%s has %zu safetensors files, but no model.safetensors.index.json: all of them are read",
                folder, files->n);
    for (size_t i = 0; i < files->n; i++) {
        int rc = add_safetensors(c, folder, files->v[i], e);
        if (rc)
            return rc;
    }
    return index_tensors(c, e);
}

static int no_weights(const char *folder, const struct list *all, struct err *e)
{
    struct buf b = BUF_INIT;
    const char *hint = "";
    for (size_t i = 0; i < all->n; i++) {
        if (has_suffix(all->v[i], ".yoke"))
            hint = "; these are files of a shard set that was not finished or has lost its manifest.json: "
                   "write it again";
        else if (has_suffix(all->v[i], ".gguf"))
            hint = "; to use a GGUF file, give its own path";
        else if ((has_suffix(all->v[i], ".bin") || has_suffix(all->v[i], ".pth") ||
                  has_suffix(all->v[i], ".pt")) &&
                 !*hint)
            hint = "; PyTorch's own format is not read: convert it to safetensors "
                   "(model.save_pretrained(folder, safe_serialization=True))";
    }
    list_print(all, &b);
    int rc =
        err_set(e, ERR_FORMAT,
                "%s has no weights: neither model.safetensors nor model.safetensors.index.json nor another "
                "*.safetensors file; there %s %s%s",
                folder, all->n == 1 ? "is" : "are", all->n ? b.s : "no files", hint);
    buf_release(&b);
    return rc;
}

/* Configurations that name no architecture (they should) but a model type. */
static void complete_architectures(json_t *config)
{
    static const struct {
        const char *model_type, *architecture;
    } known[] = {
        {"llama", "LlamaForCausalLM"},
        {"mistral", "MistralForCausalLM"},
        {"qwen2", "Qwen2ForCausalLM"},
        {"qwen3", "Qwen3ForCausalLM"},
        {"qwen2_moe", "Qwen2MoeForCausalLM"},
        {"qwen3_moe", "Qwen3MoeForCausalLM"},
        {"deepseek_v2", "DeepseekV2ForCausalLM"},
        {"deepseek_v3", "DeepseekV3ForCausalLM"},
    };
    const json_t *have = json_object_get(config, "architectures");
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if ((have && !json_is_null(have)) || !type)
        return;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(known[i].model_type, type))
            json_object_set_new(config, "architectures", json_pack("[s]", known[i].architecture));
}

static int read_object(const char *folder, const char *name, json_t **ret, struct err *e)
{
    char *path = path_join(folder, name);
    json_t *v = NULL;
    int rc = json_parse_file(path, CONFIG_MAX, &v, e);
    if (!rc && !json_is_object(v))
        rc = err_set(e, ERR_FORMAT, "%s should be a JSON object", path);
    xfree(path);
    if (rc)
        json_decref(v);
    else
        *ret = v;
    return rc;
}

static int read_configs(struct checkpoint *c, const char *folder, struct err *e)
{
    if (c->config_dir)
        folder = c->config_dir;
    char *config = path_join(folder, "config.json"),
         *generation = path_join(folder, "generation_config.json");
    bool has_config = path_is_file(config), has_generation = path_is_file(generation);
    xfree(config);
    xfree(generation);
    if (!has_config)
        return err_set(e, ERR_FORMAT,
                       "%s has no config.json; expected is a folder with config.json and safetensors, "
                       "or a GGUF file",
                       folder);
    int rc = read_object(folder, "config.json", &c->config, e);
    if (rc)
        return rc;
    complete_architectures(c->config);
    if (!json_object_get(c->config, "architectures") && !json_object_get(c->config, "model_type"))
        return err_set(e, ERR_FORMAT, "%s/config.json has neither \"architectures\" nor \"model_type\"",
                       folder);
    return has_generation ? read_object(folder, "generation_config.json", &c->generation_config, e) : 0;
}

/* -- shard sets -------------------------------------------------------------------------------------------
 */

/* Stacked experts are listed as GGUF has them, one tensor of all experts. A tensor that ranks hold in two
 * layouts is listed once. */
static int open_set(struct checkpoint *c, const char *folder, struct err *e)
{
    char *manifest = path_join(folder, "manifest.json");
    int rc = read_configs(c, folder, e);
    if (!rc)
        rc = add_file(c, manifest, e);
    if (!rc)
        rc = shardset_open(folder, &c->set, e);
    xfree(manifest);
    if (rc)
        return rc;
    const char *last = "";
    struct names seen = {0};
    for (int32_t i = 0; i < shardset_n_tensors(c->set); i++)
        names_add(&seen, shardset_tensor(c->set, i)->name, (size_t)i);
    names_sort(&seen);
    for (size_t k = 0; k < seen.n; k++) {
        const struct shard_tensor *s = shardset_tensor(c->set, (int32_t)seen.v[k].i);
        if (!strcmp(s->name, last))
            continue;
        last = s->name;
        struct tensor t = {.name = s->name, .dtype = s->src};
        const char *star = s->stacked ? strstr(s->name, ".*") : NULL;
        if (star) {
            t.name = arena_printf(c->names_arena, "%.*s%s", (int)(star - s->name), s->name, star + 2);
            t.dim[t.n_dims++] = s->experts;
        }
        if (s->matrix)
            t.dim[t.n_dims++] = s->rows;
        t.dim[t.n_dims++] = s->cols;
        add_tensor(c, t);
    }
    names_release(&seen);
    return index_tensors(c, e);
}

/* only: one file's name, or NULL for what the folder has. */
static int open_folder(struct checkpoint *c, const char *folder, const char *only, struct warn_sink *warn,
                       struct err *e)
{
    static const char index_name[] = "model.safetensors.index.json";
    if (!only && shardset_is(folder))
        return open_set(c, folder, e);
    struct list all = {0}, weights = {0}, used = {0};
    int rc = list_folder(folder, &all, e);
    if (!rc)
        rc = read_configs(c, folder, e);
    if (rc)
        goto done;
    for (size_t i = 0; i < all.n; i++)
        if (has_suffix(all.v[i], ".safetensors"))
            list_add(&weights, all.v[i]);
    if (only || list_has(&weights, "model.safetensors")) {
        list_add(&used, only ? only : "model.safetensors");
        rc = open_unindexed(c, folder, &used, warn, e);
    } else if (list_has(&all, index_name)) {
        rc = open_index(c, folder, index_name, &all, &used, warn, e);
    } else if (weights.n) {
        rc = open_unindexed(c, folder, &weights, warn, e);
        goto done;
    } else {
        rc = no_weights(folder, &all, e);
    }
    for (size_t i = 0; i < weights.n && !rc && !only; i++)
        if (!list_has(&used, weights.v[i]))
            warn_to(warn, "%s: %s is not part of the model and not read", folder, weights.v[i]);
done:
    list_release(&all);
    list_release(&weights);
    list_release(&used);
    return rc;
}

/* -- GGUF -------------------------------------------------------------------------------------------------
 */

static int add_gguf(struct checkpoint *c, const char *path, struct err *e)
{
    int rc = add_file(c, path, e);
    if (!rc)
        rc = gguf_open(path, &c->gguf.part[c->n_files - 1], e);
    if (!rc)
        c->gguf.n++;
    return rc;
}

/* A file of several opens them all, from the first one on, which has the metadata. */
static int add_gguf_parts(struct checkpoint *c, const char *path, struct err *e)
{
    struct gguf *first;
    int64_t count = 0, n_tensors = -1;
    int part, name_count;
    size_t stem;
    int rc = gguf_open(path, &first, e);
    if (rc)
        return rc;
    gguf_get_int(first, "split.count", &count);
    gguf_close(first);
    if (count <= 1)
        return add_gguf(c, path, e);
    if (count > FILES_MAX)
        return err_set(e, ERR_LIMIT, "%s says that it is one of %lld parts; at most %d are read", path,
                       (long long)count, FILES_MAX);
    if (!parse_part(path, ".gguf", &part, &name_count, &stem) || name_count != count)
        return err_set(
            e, ERR_FORMAT,
            "%s says that it is one of %lld parts, so its name should end in -NNNNN-of-%05lld.gguf", path,
            (long long)count, (long long)count);
    for (int i = 0; i < count && !rc; i++) {
        char *p = xasprintf("%.*s-%05d-of-%05d.gguf", (int)stem, path, i + 1, (int)count);
        int64_t its_no = -1, its_count = -1;
        if (!path_is_file(p))
            rc =
                err_set(e, ERR_FORMAT, "%s is part %d of %lld, but %s is not there (an incomplete download?)",
                        path, part, (long long)count, p);
        if (!rc)
            rc = add_gguf(c, p, e);
        if (!rc) {
            gguf_get_int(c->gguf.part[i], "split.no", &its_no);
            gguf_get_int(c->gguf.part[i], "split.count", &its_count);
            if (its_no != i || its_count != count)
                rc = err_set(
                    e, ERR_FORMAT,
                    "%s should say in its metadata that it is split.no %d of %lld; it says %lld of %lld", p,
                    i, (long long)count, (long long)its_no, (long long)its_count);
        }
        xfree(p);
    }
    size_t sum = 0;
    for (int i = 0; i < c->gguf.n; i++)
        sum += gguf_n_tensors(c->gguf.part[i]);
    if (!rc && gguf_get_int(c->gguf.part[0], "split.tensors.count", &n_tensors) && n_tensors >= 0 &&
        (uint64_t)n_tensors != sum)
        rc = err_set(e, ERR_FORMAT, "%s: the parts should have %lld tensors together, but have %zu", path,
                     (long long)n_tensors, sum);
    return rc;
}

/* The divisors of the rotary frequencies: a tensor there, a list in the configuration here. */
static int read_freq_factors(struct checkpoint *c, const struct gguf_tensor *g, int file, struct err *e)
{
    float f[1024];
    if (g->dtype != DT_F32 || g->n_dims != 1 || g->dim[0] > (int64_t)ARRAY_LEN(f))
        return err_set(e, ERR_FORMAT, "%s: \"%s\" should be a vector of at most %zu f32 numbers",
                       c->file[file].path, g->name, ARRAY_LEN(f));
    int rc = file_read_at(&c->file[file], g->offset, f, (size_t)g->n_bytes, e);
    json_t *list = json_array();
    for (int64_t i = 0; i < g->dim[0] && !rc; i++) {
        if (!(f[i] > 0 && f[i] < 1e30f))
            rc = err_set(e, ERR_FORMAT, "%s: element %lld of \"%s\" is %g; it should be a positive number",
                         c->file[file].path, (long long)i, g->name, (double)f[i]);
        else
            json_array_append_new(list, json_real((double)f[i]));
    }
    if (rc)
        json_decref(list);
    else
        json_object_set_new(c->config, "rope_freq_factors", list);
    return rc;
}

static int open_gguf(struct checkpoint *c, const char *path, struct err *e)
{
    const struct gguf_arch *arch;
    struct buf name = BUF_INIT;
    int rc = add_gguf_parts(c, path, e);
    if (!rc)
        rc = gguf_arch_find(c->gguf.part[0], &arch, e);
    if (!rc)
        rc = gguf_hf_config(arch, &c->gguf, &c->config, &c->generation_config, e);
    for (int file = 0; file < c->gguf.n && !rc; file++) {
        for (size_t i = 0; i < gguf_n_tensors(c->gguf.part[file]) && !rc; i++) {
            const struct gguf_tensor *g = gguf_tensor(c->gguf.part[file], i);
            if (!strcmp(g->name, "rope_freqs.weight")) {
                rc = read_freq_factors(c, g, file, e);
                continue;
            }
            buf_clear(&name);
            gguf_hf_name(arch, g->name, &name);
            struct tensor t = {.name = arena_strndup(c->names_arena, name.s, name.len),
                               .dtype = g->dtype,
                               .n_dims = g->n_dims,
                               .n_bytes = g->n_bytes,
                               .file = file,
                               .offset = g->offset};
            memcpy(t.dim, g->dim, sizeof(t.dim));
            add_tensor(c, t);
        }
    }
    buf_release(&name);
    return rc ? rc : index_tensors(c, e);
}

/* -- both -------------------------------------------------------------------------------------------------
 */

static int open_file(struct checkpoint *c, const char *path, struct warn_sink *warn, struct err *e)
{
    struct file f;
    char start[32] = "";
    int rc = file_open(&f, path, e);
    if (rc)
        return rc;
    size_t n = (size_t)MIN(f.size, sizeof(start));
    rc = file_read_at(&f, 0, start, n, e);
    file_close(&f);
    if (rc)
        return rc;
    /* By content first: blobs in caches of other programs have no extension. */
    if (!memcmp(start, "GGUF", 4) || has_suffix(path, ".gguf"))
        return open_gguf(c, path, e);
    if (has_suffix(path, ".safetensors")) {
        char *folder = folder_of(path);
        rc = open_folder(c, folder, base_name(path), warn, e);
        xfree(folder);
        return rc;
    }
    const char *known = bytes_known_mistake(start, n);
    return err_set(e, ERR_FORMAT,
                   "%s %s%sexpected is a folder with config.json and safetensors, or a GGUF file", path,
                   known ? known : "is no model", known ? "; " : ": ");
}

int checkpoint_open(const char *path, struct warn_sink *warn, struct checkpoint **ret, struct err *e)
{
    return checkpoint_open_with(path, NULL, warn, ret, e);
}

int checkpoint_open_with(const char *path, const char *config_dir, struct warn_sink *warn,
                         struct checkpoint **ret, struct err *e)
{
    struct checkpoint *c;
    XNEW(c);
    c->path = xstrdup(path);
    c->config_dir = config_dir;
    c->names_arena = arena_new();
    int rc = path_is_dir(path) ? open_folder(c, path, NULL, warn, e) : open_file(c, path, warn, e);
    c->config_dir = NULL;
    if (rc)
        checkpoint_close(c);
    else
        *ret = c;
    return rc;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_files; i++) {
        file_close(&c->file[i]);
        xfree(c->file_name[i]);
        safetensors_close(c->st[i]);
        gguf_close(c->gguf.part[i]);
    }
    xfree(c->file);
    xfree(c->file_name);
    xfree(c->st);
    xfree(c->gguf.part);
    shardset_close(c->set);
    json_decref(c->config);
    json_decref(c->generation_config);
    names_release(&c->names);
    xfree(c->tensor);
    arena_free(c->names_arena);
    xfree(c->path);
    xfree(c);
}

const char *checkpoint_path(const struct checkpoint *c)
{
    return c->path;
}

const struct gguf *checkpoint_gguf(const struct checkpoint *c)
{
    return c->gguf.n ? c->gguf.part[0] : NULL;
}

const struct shardset *checkpoint_shardset(const struct checkpoint *c)
{
    return c->set;
}

int checkpoint_n_files(const struct checkpoint *c)
{
    return c->n_files;
}

const json_t *checkpoint_config(const struct checkpoint *c)
{
    return c->config;
}

const json_t *checkpoint_generation_config(const struct checkpoint *c)
{
    return c->generation_config;
}

size_t checkpoint_n_tensors(const struct checkpoint *c)
{
    return c->n;
}

const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i)
{
    return &c->tensor[i];
}

const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    size_t i = names_find(&c->names, name);
    return i == NAMES_NONE ? NULL : &c->tensor[i];
}

const char *checkpoint_file_name(const struct checkpoint *c, int file)
{
    return c->file_name[file];
}

uint64_t checkpoint_n_bytes(const struct checkpoint *c)
{
    return c->n_bytes;
}

/* `rows` pieces of `piece` bytes each, `stride` bytes apart, packed into dst. */
static int read_strided(const struct file *f, uint64_t offset, uint64_t rows, size_t piece, size_t stride,
                        uint8_t *dst, struct err *e)
{
    int rc = 0;
    if (piece >= DIRECT_BYTES || stride > SCRATCH_BYTES) {
        for (uint64_t r = 0; r < rows && !rc; r++)
            rc = file_read_at(f, offset + r * stride, dst + r * piece, piece, e);
        return rc;
    }
    uint64_t batch = MIN(rows, SCRATCH_BYTES / stride);
    uint8_t *scratch = xmalloc((size_t)batch * stride);
    for (uint64_t r = 0; r < rows && !rc; r += batch) {
        uint64_t n = MIN(batch, rows - r);
        rc = file_read_at(f, offset + r * stride, scratch, (size_t)((n - 1) * stride) + piece, e);
        for (uint64_t i = 0; i < n && !rc; i++)
            memcpy(dst + (r + i) * piece, scratch + i * stride, piece);
    }
    xfree(scratch);
    return rc;
}

int checkpoint_read(const struct checkpoint *c, const struct tensor *t, int64_t row0, int64_t row1,
                    int64_t col0, int64_t col1, void *dst, struct err *e)
{
    const struct dtype_info *d = dtype_info(t->dtype);
    const struct file *f = &c->file[t->file];
    if (c->set)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" is there packed for ranks only", c->path,
                       t->name);
    if (!d->block_bytes)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor \"%s\" has dtype %s, which yoke does not read",
                       f->path, t->name, safetensors_find(c->st[t->file], t->name)->dtype_name);
    int64_t cols = t->n_dims ? t->dim[t->n_dims - 1] : 1, rows = 1;
    for (int i = 0; i < t->n_dims - 1; i++)
        rows *=
            t->dim[i]; /* as an empty one may be larger than memory: checked below, not used to count bytes */
    if (row0 < 0 || row1 < row0 || row1 > rows || col0 < 0 || col1 < col0 || col1 > cols)
        return err_set(
            e, ERR_SPLIT,
            "%s: rows %lld to %lld, columns %lld to %lld of tensor \"%s\" are wanted, but it has %lld rows "
            "of %lld",
            f->path, (long long)row0, (long long)row1, (long long)col0, (long long)col1, t->name,
            (long long)rows, (long long)cols);
    if (col0 % d->block || col1 % d->block)
        return err_set(
            e, ERR_SPLIT,
            "%s: columns %lld to %lld of tensor \"%s\" are wanted, but %s is stored in blocks of %d, which "
            "cannot be cut",
            f->path, (long long)col0, (long long)col1, t->name, d->name, d->block);
    uint64_t n = (uint64_t)(row1 - row0);
    size_t stride = dtype_bytes(t->dtype, (size_t)cols), piece = dtype_bytes(t->dtype, (size_t)(col1 - col0));
    uint64_t offset = t->offset + (uint64_t)row0 * stride + dtype_bytes(t->dtype, (size_t)col0);
    if (!n || !piece)
        return 0;
    if (piece == stride || n == 1)
        return file_read_at(f, offset, dst, (size_t)n * piece, e);
    return read_strided(f, offset, n, piece, stride, dst, e);
}

/* shardset_model.c: the small files that make a shard set a model of its own. */
#include <string.h>
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "formats/shardset.h"

#define COPY_MAX ((size_t)256 << 20)

static const char *const text_files[] = {"tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "tokenizer.gguf"};

static int copy_if_there(struct shardset_writer *w, const char *dir, const char *name, struct err *e)
{
    struct buf b = BUF_INIT;
    char *path = path_join(dir, name);
    int rc = 0;
    if (path_is_file(path)) {
        rc = file_slurp(path, COPY_MAX, &b, e);
        if (!rc)
            rc = shardset_add_file(w, name, b.s, b.len, e);
    }
    buf_release(&b);
    xfree(path);
    return rc;
}

static int add_json(struct shardset_writer *w, const char *name, const json_t *v, struct err *e)
{
    struct buf b = BUF_INIT;
    if (!v)
        return 0;
    json_print(v, JSON_INDENT(2), &b);
    buf_addc(&b, '\n');
    int rc = shardset_add_file(w, name, b.s, b.len, e);
    buf_release(&b);
    return rc;
}

static bool has_tokenizer(const char *dir)
{
    char *path = path_join(dir, "tokenizer.json");
    bool has = path_is_file(path);
    xfree(path);
    return has;
}

int shardset_add_model(struct shardset_writer *w, const struct checkpoint *c, const char *config_dir,
                       struct err *e)
{
    const struct gguf *g = checkpoint_gguf(c);
    const char *path = checkpoint_path(c), *slash = strrchr(path, '/');
    char *folder = path_is_dir(path) ? xstrdup(path)
                   : slash           ? xstrndup(path, (size_t)MAX(slash - path, 1))
                                     : xstrdup(".");
    const char *from = config_dir ? config_dir : folder;
    struct buf b = BUF_INIT;
    /* As the checkpoint understands it: what another program would have to guess is filled in. */
    int rc = add_json(w, "config.json", checkpoint_config(c), e);
    if (!rc)
        rc = add_json(w, "generation_config.json", checkpoint_generation_config(c), e);
    if (!rc && g && !(config_dir && has_tokenizer(config_dir))) {
        rc = gguf_metadata_only(g, &b, e);
        if (!rc)
            rc = shardset_add_file(w, "tokenizer.gguf", b.s, b.len, e);
    } else {
        for (size_t i = 0; i < ARRAY_LEN(text_files) && !rc; i++)
            rc = copy_if_there(w, from, text_files[i], e);
    }
    buf_release(&b);
    xfree(folder);
    return rc;
}

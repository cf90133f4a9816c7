#!/bin/sh
# check_docs.sh: every file that a page names in backticks, or links to, exists; every folder has a README.
#
# A word counts as a file if it ends like a source file or in a slash, or lies in tests/, scripts/, configs/ or docs/. It
# is looked for from the root, from the page's folder and, without a slash, everywhere. `x.[ch]` is two files, * matches.
set -eu
cd "$(dirname "$0")/.."

git ls-files --cached --others --exclude-standard | awk '
BEGIN {
    # Made by building or running; a model'"'"'s own files; words that stand for any name.
    made = "^(/|~|[.]venv/|build|output/|models/SmolLM2|https?:)"
    models = "^((tokenizer|config|generation_config|tokenizer_config|special_tokens_map)[.]json|chat_template[.]jinja|" \
             "model[.]safetensors.*|prompts[.]jsonl|my[.]yaml|run_mindformer[.]py|arm/.*|server/|[.][a-z]+|[*][.][a-z]+)$"
    any = "NAME|NNN|DIR|FILE|MODEL|[<>{}$=(),:]"
    counts = "[.]([ch]|md|py|sh|def|build|yaml|json|txt|supp|dict|jinja)$|[.]\\[ch\\]$|/$|^(tests|scripts|configs|docs)/"
}
{
    list[++n] = $0
    there[$0] = 1
    for (p = $0; sub(/\/[^\/]*$/, "", p);)
        there[p] = 1
    base = $0
    sub(/.*\//, "", base)
    there["/" base] = 1
    if ($0 ~ /[.]md$/)
        page[++pages] = $0
}
function found(name,    i, re) {
    if (sub(/\[ch\]$/, "c", name))
        return found(name) && found(substr(name, 1, length(name) - 1) "h")
    if (name !~ /[*]/)
        return (name in there) || ((at name) in there) || ("/" name) in there
    re = name
    gsub(/[.]/, "[.]", re)
    gsub(/[*]/, "[^/]*", re)
    for (i = 1; i <= n; i++)
        if (list[i] ~ "^" re "(/|$)" || list[i] ~ "^" at re "(/|$)" || (name !~ /\// && list[i] ~ "/" re "$"))
            return 1
    return 0
}
function look(name) {
    sub(/#.*/, "", name)
    if (name !~ counts || name ~ any || name ~ made || name ~ models)
        return
    sub(/\/$/, "", name)
    if (!found(name)) {
        print page[i] ":" line ": there is no " name
        bad = 1
    }
}
END {
    for (i = 1; i <= pages; i++) {
        at = page[i]
        if (!sub(/[^\/]*$/, "", at) || page[i] == "docs/options.md") # that one is printed from the option table
            continue
        code = line = 0
        while ((getline text <page[i]) > 0) {
            line++
            if (text ~ /^```/)
                code = !code
            if (code || text ~ /^(```|    )/) # commands and output
                continue
            while (match(text, /`[^` ]+`|\]\([^) ]+\)/)) {
                name = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
                gsub(/^(`|\]\()|[`)]$/, "", name)
                look(name)
            }
        }
        close(page[i])
    }
    for (dir in there)
        if (dir ~ /^([a-z0-9]+|tests\/[a-z0-9]+)$/ && !((dir "/README.md") in there) && system("test -d " dir) == 0) {
            print dir "/ has no README.md"
            bad = 1
        }
    if (!bad)
        print pages " pages, every file they name is there"
    exit bad
}'

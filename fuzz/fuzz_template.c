/* Bytes are a chat template; it is rendered with a fixed conversation and small limits. */
#include <stdint.h>
#include <string.h>
#include "base/json.h"
#include "text/template.h"

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be h\xc3\xa9lpful.\"}, {\"role\": \"user\", "
    "\"content\": \"Hi \xf0\x9f\x99\x82\\n\"},"
    " {\"role\": \"assistant\", \"content\": \"<think>\\nx</think>ok\", \"tool_calls\": [{\"id\": "
    "\"123456789\", \"type\": \"function\","
    " \"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, null, true], \"b\": {\"c\": "
    "\"d\"}}}}]},"
    " {\"role\": \"tool\", \"content\": \"{}\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
    "\"text\": \"t\"}, {\"type\": \"image\"}]}],"
    " \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"does\", "
    "\"parameters\": {\"type\": \"object\","
    " \"properties\": {\"a\": {\"type\": \"array\", \"items\": {\"type\": \"number\"}}}, \"required\": "
    "[\"a\"]}}}],"
    " \"documents\": [{\"title\": \"T\", \"text\": \"D\"}], \"add_generation_prompt\": true, \"bos_token\": "
    "\"<s>\", \"eos_token\": \"</s>\","
    " \"n\": -7, \"f\": 2.5, \"big\": 9223372036854775807, \"none_\": null, \"l\": [3, 1, 2], \"e\": [], "
    "\"s\": \"Hello World\"}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *vars;
    struct template_limits limits = {.max_steps = 20000, .max_output = 65536, .now = 1722470400};
    struct template *t = NULL;
    struct err e = {0};
    if (!vars && json_parse(conversation, strlen(conversation), "fuzz", &vars, &e))
        return 0;
    if (template_parse((const char *)data, size, &t, &e) == 0) {
        struct buf out = BUF_INIT;
        template_render(t, vars, limits, &out, &e);
        buf_release(&out);
    }
    template_free(t);
    return 0;
}

/* A timeline that is full drops and counts; what is written is valid JSON with all that was kept. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/trace.h"

static void test_full(void **state)
{
    struct graph g = {0};
    struct step steps[2] = {{.kind = OP_ADD, .layer = 3, .in = {-1, -1, -1, -1}, .op = -1},
                            {.kind = OP_ALLREDUCE, .layer = -1, .in = {0, -1, -1, -1}, .op = -1}};
    struct slot slot = {.kind = SLOT_WORK, .row_bytes = 40};
    const struct plan p = {
        .graph = &g, .opt = {.tp = 1}, .steps = steps, .n_steps = 2, .slots = &slot, .n_slots = 1};
    struct comm *c = comm_self_new();
    struct trace *t;
    struct err e = {0};
    char *text = NULL;
    size_t n;
    assert_int_equal(trace_new(&p, 2, 1, &t, &e), 0);
    int64_t now = clock_ns();
    for (int i = 0; i < TRACE_EVENTS + 7; i++)
        trace_add(t, 0, i % 2, now + i, 5);
    trace_add(t, 1, TRACE_TICK, now - 1500, 9); /* the earliest */
    trace_add(t, 2, TRACE_READ - 7, now, 11);
    FILE *f = open_memstream(&text, &n);
    assert_int_equal(trace_write(t, c, f, &e), 0);
    fclose(f);
    json_t *o = json_loadb(text, n, 0, NULL), *events = json_object_get(o, "traceEvents"), *x;
    assert_non_null(o);
    assert_string_equal(json_string_value(json_object_get(json_object_get(o, "otherData"), "dropped_events")),
                        "7");
    assert_int_equal(json_array_size(events), 2 + 2 * 3 + TRACE_EVENTS + 2); /* names and orders; events */
    x = json_array_get(events, 4);
    assert_string_equal(json_string_value(json_object_get(x, "name")), "add");
    assert_string_equal(json_string_value(json_object_get(x, "cat")), "step");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(x, "args"), "layer")), 3);
    assert_true(json_number_value(json_object_get(x, "ts")) == 1.5);
    x = json_array_get(events, 5);
    assert_string_equal(json_string_value(json_object_get(x, "cat")), "collective");
    assert_null(json_object_get(json_object_get(x, "args"), "layer"));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(x, "args"), "bytes")), 200);
    x = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(json_string_value(json_object_get(x, "cat")), "read");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(x, "args"), "layer")), 7);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(x, "args"), "expert")), 11);
    x = json_array_get(events, json_array_size(events) - 3);
    assert_string_equal(json_string_value(json_object_get(json_object_get(x, "args"), "name")), "reads 0");
    x = json_array_get(events, json_array_size(events) - 4);
    assert_string_equal(json_string_value(json_object_get(x, "name")), "tick");
    assert_true(json_number_value(json_object_get(x, "ts")) == 0);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(x, "args"), "tokens")), 9);
    json_decref(o);
    free(text);
    trace_free(t);
    comm_close(c);
}

static void test_disk_full(void **state)
{
    struct graph g = {0};
    const struct plan p = {.graph = &g, .opt = {.tp = 1}};
    struct comm *c = comm_self_new();
    struct trace *t;
    struct err e = {0};
    FILE *f = fopen("/dev/full", "we");
    if (!f)
        skip();
    assert_int_equal(trace_new(&p, 1, 0, &t, &e), 0);
    assert_true(trace_write(t, c, f, &e) < 0);
    assert_non_null(strstr(e.msg, "cannot write"));
    fclose(f);
    trace_free(t);
    comm_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full), cmocka_unit_test(test_disk_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

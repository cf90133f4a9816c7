#include "exec/reference.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "exec/run.h"
#include "kernels/rows.h"

struct ref {
    const struct graph *g;
    reference_weight_fn *weight;
    void *ctx;
    int32_t n;
    float **act; /* by value id: [n, width]; KV states: K then V */
};

static float *input(const struct ref *x, const struct op *o, int i)
{
    return x->act[o->in[i].id];
}

static size_t width(const struct ref *x, val v)
{
    return (size_t)value_width(x->g, graph_value(x->g, v));
}

static void ref_embed(const struct ref *x, const struct op *o, const int32_t *token, float *y)
{
    const float *table = x->weight(x->ctx, x->g, o->in[0]);
    size_t w = width(x, o->out);
    for (int32_t t = 0; t < x->n; t++)
        memcpy(y + (size_t)t * w, table + (size_t)token[t] * w, w * sizeof(float));
}

static void ref_matmul(const struct ref *x, const struct op *o, float *y)
{
    const float *w = x->weight(x->ctx, x->g, o->in[1]), *a = input(x, o, 0);
    size_t n_in = width(x, o->in[0]), n_out = width(x, o->out);
    for (size_t t = 0; t < (size_t)x->n; t++)
        for (size_t r = 0; r < n_out; r++) {
            double sum = 0;
            for (size_t k = 0; k < n_in; k++)
                sum += (double)w[r * n_in + k] * (double)a[t * n_in + k];
            y[t * n_out + r] = (float)sum;
        }
}

static void ref_add(const struct ref *x, const struct op *o, float *y)
{
    bool bias = graph_value(x->g, o->in[1])->kind == VAL_WEIGHT;
    const float *a = input(x, o, 0), *b = bias ? x->weight(x->ctx, x->g, o->in[1]) : input(x, o, 1);
    size_t n = width(x, o->out), m = bias ? width(x, o->in[1]) : n * (size_t)x->n;
    for (size_t i = 0; i < n * (size_t)x->n; i++)
        y[i] = a[i] + b[bias ? i % n % m : i];
}

static void ref_norm(const struct ref *x, const struct op *o, float *y)
{
    const float *a = input(x, o, 0), *w = x->weight(x->ctx, x->g, o->in[1]);
    size_t m = width(x, o->in[1]), total = width(x, o->out) * (size_t)x->n;
    for (size_t at = 0; at < total; at += m) {
        double ss = 0;
        for (size_t k = 0; k < m; k++)
            ss += (double)a[at + k] * (double)a[at + k];
        double inv = 1 / sqrt(ss / (double)m + (double)o->eps);
        for (size_t k = 0; k < m; k++)
            y[at + k] = (float)((double)a[at + k] * inv * (double)w[k]);
    }
}

static void ref_rope(const struct ref *x, const struct op *o, float *y)
{
    const struct rope *r = &x->g->ropes[o->rope.id];
    const struct value *out = graph_value(x->g, o->out);
    size_t d = (size_t)x->g->axis_n[out->dim[out->n_dims - 1]], w = width(x, o->out),
           half = (size_t)r->rot / 2;
    float *freq;
    XNEW_N(freq, half);
    rope_frequencies(r, freq);
    memcpy(y, input(x, o, 0), w * (size_t)x->n * sizeof(float));
    for (size_t t = 0; t < (size_t)x->n; t++)
        for (size_t h = 0; h < w / d; h++)
            for (size_t i = 0; i < half; i++) {
                float *v = y + t * w + h * d + (size_t)o->rope.offset;
                float *a = v + (r->interleaved ? 2 * i : i), *b = v + (r->interleaved ? 2 * i + 1 : i + half);
                double angle = (double)((float)t * freq[i]), s = sin(angle) * r->attention_factor,
                       c = cos(angle) * r->attention_factor, a0 = (double)*a, b0 = (double)*b;
                *a = (float)(a0 * c - b0 * s);
                *b = (float)(b0 * c + a0 * s);
            }
    xfree(freq);
}

/* K is what was appended; V too, or for a latent K's first elements. */
static void ref_attend(const struct ref *x, const struct op *o, float *y)
{
    const struct graph *g = x->g;
    bool latent = graph_value(g, o->in[1])->n_dims == 2;
    size_t d = (size_t)g->axis_n[latent ? AX_LATENT : AX_HEAD_DIM],
           dv = (size_t)g->axis_n[latent ? AX_KV_LORA : AX_HEAD_DIM];
    size_t heads = (size_t)g->axis_n[AX_HEAD], kv_heads = latent ? 1 : (size_t)g->axis_n[AX_KV_HEAD];
    const float *q = input(x, o, 0), *k = input(x, o, 1), *v = latent ? k : k + (size_t)x->n * kv_heads * d;
    double *p;
    XNEW_N(p, (size_t)x->n);
    for (size_t t = 0; t < (size_t)x->n; t++)
        for (size_t h = 0; h < heads; h++) {
            size_t kvh = h / (heads / kv_heads), from = 0;
            if (o->attend.window && t + 1 > (size_t)o->attend.window)
                from = t + 1 - (size_t)o->attend.window;
            double max = -INFINITY, sum = 0;
            for (size_t j = from; j <= t; j++) {
                p[j] = 0;
                for (size_t i = 0; i < d; i++)
                    p[j] += (double)q[(t * heads + h) * d + i] * (double)k[(j * kv_heads + kvh) * d + i];
                p[j] *= (double)o->attend.scale;
                max = fmax(max, p[j]);
            }
            for (size_t j = from; j <= t; j++)
                sum += p[j] = exp(p[j] - max);
            for (size_t i = 0; i < dv; i++) {
                double out = 0;
                for (size_t j = from; j <= t; j++)
                    out += p[j] * (double)v[(j * kv_heads + kvh) * d + i];
                y[(t * heads + h) * dv + i] = (float)(out / sum);
            }
        }
    xfree(p);
}

static void ref_norm_part(const struct ref *x, const struct op *o, float *y)
{
    size_t w = width(x, o->out), m = width(x, o->in[1]);
    const float *a = input(x, o, 0), *weight = x->weight(x->ctx, x->g, o->in[1]);
    memcpy(y, a, w * (size_t)x->n * sizeof(float));
    for (size_t t = 0; t < (size_t)x->n; t++) {
        double ss = 0;
        for (size_t k = 0; k < m; k++)
            ss += (double)a[t * w + k] * (double)a[t * w + k];
        double inv = 1 / sqrt(ss / (double)m + (double)o->eps);
        for (size_t k = 0; k < m; k++)
            y[t * w + k] = (float)((double)a[t * w + k] * inv * (double)weight[k]);
    }
}

/* absorb and expand */
static void ref_heads(const struct ref *x, const struct op *o, float *y)
{
    const struct graph *g = x->g;
    const struct value *w = graph_value(g, o->in[1]), *in = graph_value(g, o->in[0]),
                       *out = graph_value(g, o->out);
    size_t heads = (size_t)g->axis_n[AX_HEAD], rows = (size_t)g->axis_n[w->dim[1]],
           cols = (size_t)g->axis_n[w->dim[2]];
    size_t n_in = (size_t)g->axis_n[in->dim[2]], n_out = (size_t)g->axis_n[out->dim[2]];
    const float *weight = x->weight(x->ctx, g, o->in[1]);
    for (size_t i = 0; i < (size_t)x->n * heads; i++) {
        const float *a = input(x, o, 0) + i * n_in, *m = weight + i % heads * rows * cols;
        for (size_t r = 0; r < rows; r++) {
            double sum = 0;
            for (size_t k = 0; k < cols; k++)
                sum += (double)m[r * cols + k] * (double)a[k];
            y[i * n_out + r] = (float)sum;
        }
        for (size_t k = rows; k < n_out; k++)
            y[i * n_out + k] = a[cols + k - rows];
    }
}

static double activate(int kind, double a)
{
    return kind == GLU_SILU ? a / (1 + exp(-a))
                            : 0.5 * a * (1 + tanh(sqrt(2 / M_PI) * (a + 0.044715 * a * a * a)));
}

static void ref_glu(const struct ref *x, const struct op *o, float *y)
{
    const float *gate = input(x, o, 0), *up = input(x, o, 1);
    for (size_t i = 0; i < width(x, o->out) * (size_t)x->n; i++) {
        y[i] = (float)(activate(o->glu, (double)gate[i]) * (double)up[i]);
    }
}

/* Choices as k (expert, weight) in the order found; the graph's routing rules in doubles. */
static void ref_route(const struct ref *x, const struct op *o, float *y)
{
    const struct routing *r = &x->g->routings[o->routing];
    size_t n = width(x, o->in[0]), k = (size_t)r->k, size = n / (size_t)r->n_group;
    const float *logits = input(x, o, 0),
                *bias = op_inputs(o) == 2 ? x->weight(x->ctx, x->g, o->in[1]) : NULL;
    double *score, *decide;
    XNEW_N(score, n);
    XNEW_N(decide, n);
    for (size_t t = 0; t < (size_t)x->n; t++) {
        double max = -INFINITY, sum = 0;
        for (size_t i = 0; i < n; i++)
            max = fmax(max, (double)logits[t * n + i]);
        for (size_t i = 0; i < n; i++)
            sum += exp((double)logits[t * n + i] - max);
        for (size_t i = 0; i < n; i++) {
            double l = (double)logits[t * n + i];
            score[i] = r->sigmoid ? 1 / (1 + exp(-l)) : exp(l - max) / sum;
            decide[i] = score[i] + (bias ? (double)bias[i] : 0);
        }
        for (int32_t drop = r->n_group - r->topk_group; drop > 0;
             drop--) { /* the worst group goes, one at a time */
            size_t worst = n;
            double least = INFINITY;
            for (size_t g = 0; g < n; g += size) {
                double a = -INFINITY, b = -INFINITY;
                for (size_t i = g; i < g + size; i++)
                    if (decide[i] > a) {
                        b = a;
                        a = decide[i];
                    } else if (decide[i] > b) {
                        b = decide[i];
                    }
                double worth = r->group_top2 ? a + b : a;
                if (worth > -INFINITY && worth <= least) {
                    least = worth;
                    worst = g;
                }
            }
            for (size_t i = worst; i < worst + size && worst < n; i++)
                decide[i] = -INFINITY;
        }
        double total = 0;
        for (size_t j = 0; j < k; j++) {
            int32_t at = 0;
            for (size_t i = 1; i < n; i++)
                if (decide[i] > decide[at])
                    at = (int32_t)i;
            decide[at] = -INFINITY;
            memcpy(&y[t * 2 * k + j], &at, sizeof(at));
            y[t * 2 * k + k + j] = (float)score[at];
            total += score[at];
        }
        for (size_t j = 0; j < k; j++)
            y[t * 2 * k + k + j] =
                (float)((double)y[t * 2 * k + k + j] / (r->normalise ? total : 1) * (double)r->scale);
    }
    xfree(score);
    xfree(decide);
}

static double dot(const float *a, const double *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void ref_experts(const struct ref *x, const struct op *o, float *y)
{
    size_t d = width(x, o->out), f = (size_t)x->g->axis_n[AX_MOE_FFN],
           k = (size_t)x->g->axis_n[AX_CHOICE] / 2;
    const float *in = input(x, o, 0), *choice = input(x, o, 1);
    double *row, *h, *sum;
    XNEW_N(row, d);
    XNEW_N(h, f);
    XNEW_N(sum, d);
    for (size_t t = 0; t < (size_t)x->n; t++) {
        memset(sum, 0, sizeof(double) * d);
        for (size_t i = 0; i < d; i++)
            row[i] = (double)in[t * d + i];
        for (size_t j = 0; j < k; j++) {
            int32_t e;
            memcpy(&e, &choice[t * 2 * k + j], sizeof(e));
            size_t at = (size_t)e * f * d;
            for (size_t i = 0; i < f; i++)
                h[i] = activate(o->glu, dot(x->weight(x->ctx, x->g, o->in[2]) + at + i * d, row, d)) *
                       dot(x->weight(x->ctx, x->g, o->in[3]) + at + i * d, row, d);
            for (size_t i = 0; i < d; i++)
                sum[i] += (double)choice[t * 2 * k + k + j] *
                          dot(x->weight(x->ctx, x->g, o->in[4]) + at + i * f, h, f);
        }
        for (size_t i = 0; i < d; i++)
            y[t * d + i] = (float)sum[i];
    }
    xfree(row);
    xfree(h);
    xfree(sum);
}

static void ref_gate(const struct ref *x, const struct op *o, float *y)
{
    size_t d = width(x, o->out);
    for (size_t i = 0; i < d * (size_t)x->n; i++)
        y[i] = (float)((double)input(x, o, 0)[i] / (1 + exp(-(double)input(x, o, 1)[i / d])));
}

static void step(struct ref *x, const struct op *o, const int32_t *token)
{
    size_t n = width(x, o->out) * (size_t)x->n;
    float *y;
    XNEW_N(y, o->kind == OP_KV_APPEND ? 2 * n : n);
    x->act[o->out.id] = y;
    switch (o->kind) {
    case OP_EMBED:
        ref_embed(x, o, token, y);
        break;
    case OP_MATMUL:
        ref_matmul(x, o, y);
        break;
    case OP_ADD:
        ref_add(x, o, y);
        break;
    case OP_RMS_NORM:
        ref_norm(x, o, y);
        break;
    case OP_ROPE:
        ref_rope(x, o, y);
        break;
    case OP_KV_APPEND:
        memcpy(y, input(x, o, 0), n * sizeof(float));
        if (op_inputs(o) == 2)
            memcpy(y + n, input(x, o, 1), n * sizeof(float));
        break;
    case OP_ATTEND:
        ref_attend(x, o, y);
        break;
    case OP_GLU:
        ref_glu(x, o, y);
        break;
    case OP_NORM_PART:
        ref_norm_part(x, o, y);
        break;
    case OP_ABSORB:
    case OP_EXPAND:
        ref_heads(x, o, y);
        break;
    case OP_ROUTE:
        ref_route(x, o, y);
        break;
    case OP_EXPERTS:
        ref_experts(x, o, y);
        break;
    case OP_GATE:
        ref_gate(x, o, y);
        break;
    default: /* SELECT: the reference keeps every row */
        memcpy(y, input(x, o, 0), n * sizeof(float));
        break;
    }
}

void reference_run(const struct graph *g, reference_weight_fn *weight, void *ctx, const int32_t *token,
                   int32_t n, float *logits)
{
    struct ref x = {.g = g, .weight = weight, .ctx = ctx, .n = n};
    XNEW_N(x.act, (size_t)g->n_values);
    for (int i = 0; i < g->n_ops; i++)
        step(&x, &g->ops[i], token);
    memcpy(logits, x.act[g->logits.id], width(&x, g->logits) * (size_t)n * sizeof(float));
    for (int i = 0; i < g->n_values; i++)
        xfree(x.act[i]);
    xfree(x.act);
}

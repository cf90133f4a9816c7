/* sampler.h: from a row of logits to the next token.
 *
 * The order is transformers': penalties (repetition, then presence and frequency as OpenAI defines them),
 * minimum length, temperature, top-k, top-p, min-p, then one draw. Greedy skips everything after the
 * penalties. Random numbers are counter-based, keyed by (seed, position): a request's draws do not depend on
 * its company, and a request that is continued elsewhere draws the same.
 */
#ifndef YOKE_ENGINE_SAMPLER_H
#define YOKE_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

struct sampling {
    bool greedy;                                /* temperature 0 means this too */
    double temperature;                         /* 1: as the model says */
    int32_t top_k;                              /* 0: off */
    double top_p;                               /* 1: off */
    double min_p;                               /* 0: off */
    double repetition_penalty;                  /* 1: off; over prompt and output, as transformers */
    double presence_penalty, frequency_penalty; /* 0: off; over the output only, as OpenAI */
    uint64_t seed;
};
#define SAMPLING_INIT                                                                                        \
    {                                                                                                        \
        .greedy = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1                                \
    }

struct sampler;
struct sampler *sampler_new(int32_t n_vocab); /* scratch for one thread */
void sampler_free(struct sampler *s);         /* NULL is fine */

/* tokens: prompt then output, n_prompt + n_output ids. banned: ids that may not come now (the eos ids before
 * a minimum length). Ties go to the lower id. Non-finite logits: NaN counts as -inf; if nothing is finite,
 * returns -1. */
struct sampler_input {
    const float *logits; /* [n_vocab], not changed */
    const int32_t *tokens;
    int32_t n_prompt, n_output;
    const int32_t *banned;
    int32_t n_banned;
};
int32_t sampler_draw(struct sampler *s, const struct sampling *p, const struct sampler_input *in);

/* Uniform in [0, 1) with 53 bits, a pure function (Philox or SplitMix-like; stated in sampler.c). */
double sampler_uniform(uint64_t seed, uint64_t position);

#endif

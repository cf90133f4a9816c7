/* sampler.h: from a row of logits to the next token.
 *
 * The order is transformers': penalties (repetition, then presence and frequency as OpenAI defines them),
 * minimum length, temperature, top-k, top-p, min-p, then one draw. Greedy skips everything after the
 * penalties. Random numbers are counter-based, keyed by (seed, position): a request's draws do not depend on
 * its company, and a request that is continued elsewhere draws the same.
 *
 * Which tokens survive, as transformers has it: top-k keeps whatever ties with the k-th; top-p keeps, from
 * the most probable down, each token whose predecessors sum to less than p (so at least one); min-p keeps
 * those with at least min_p times the highest probability. Probabilities are those of the float logits;
 * they are added in double, always in the same order.
 */
#ifndef YOKE_ENGINE_SAMPLER_H
#define YOKE_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"

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
/* ERR_USAGE names the parameter that is out of range, and the range. */
int sampling_check(const struct sampling *p, struct err *e);

struct sampler;
struct sampler *sampler_new(int32_t n_vocab); /* scratch for one thread */
void sampler_free(struct sampler *s);         /* NULL is fine */

/* tokens: prompt then output, n_prompt + n_output ids. banned: ids that may not come now (the eos ids before
 * a minimum length); those outside the vocabulary cannot come anyway. Ties go to the lower id. Non-finite
 * logits (NaN and both infinities) count as -inf; if nothing is finite, returns -1. */
struct sampler_input {
    const float *logits; /* [n_vocab], not changed */
    const int32_t *tokens;
    int32_t n_prompt, n_output;
    const int32_t *banned;
    int32_t n_banned;
};
/* Allocates nothing. The draw's position, for the random number, is n_prompt + n_output. */
int32_t sampler_draw(struct sampler *s, const struct sampling *p, const struct sampler_input *in);

/* What sampler_draw draws from: the ids that survive, increasing, and their probabilities, which sum to 1.
 * ret_ids, ret_probs: [n_vocab]. Returns how many; 0 if nothing is finite. */
int32_t sampler_distribution(struct sampler *s, const struct sampling *p, const struct sampler_input *in,
                             int32_t *ret_ids, double *ret_probs);

/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t ret[4]);

/* Uniform in [0, 1) with 53 bits: the first 64 bits of Philox with the seed as key and the position as
 * counter, low words first. */
double sampler_uniform(uint64_t seed, uint64_t position);

#endif

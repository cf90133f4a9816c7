#include <math.h>
#include "exec/run.h"

/* YaRN: the pair at which the rotation makes `turns` turns over the original context (arXiv 2309.00071, as in
 * transformers' _compute_yarn_parameters). */
static double yarn_dim(double turns, const struct rope *r)
{
    return r->rot * log(r->original_max / (turns * 2 * M_PI)) / (2 * log(r->theta));
}

static void yarn(const struct rope *r, float *f)
{
    double low = yarn_dim(r->beta_fast, r), high = yarn_dim(r->beta_slow, r);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, r->rot - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->rot / 2; i++) {
        float ramp = (float)((i - low) / (high - low));
        ramp = fminf(fmaxf(ramp, 0.0f), 1.0f);
        float keep = 1.0f - ramp, interpolated = f[i] / (float)r->factor;
        f[i] = interpolated * (1.0f - keep) + f[i] * keep;
    }
}

static void llama3(const struct rope *r, float *f)
{
    double low_wavelength = r->original_max / r->low_freq_factor;
    double high_wavelength = r->original_max / r->high_freq_factor;
    for (int i = 0; i < r->rot / 2; i++) {
        double wavelength = 2 * M_PI / f[i];
        if (wavelength > low_wavelength) {
            f[i] = f[i] / (float)r->factor;
        } else if (wavelength >= high_wavelength) {
            float smooth = (float)((r->original_max / wavelength - r->low_freq_factor) /
                                   (r->high_freq_factor - r->low_freq_factor));
            f[i] = (1.0f - smooth) * f[i] / (float)r->factor + smooth * f[i];
        }
    }
}

void rope_frequencies(const struct rope *r, float *f)
{
    for (int i = 0; i < r->rot / 2; i++) {
        f[i] = 1.0f / (float)pow(r->theta, (double)((float)(2 * i) / (float)r->rot));
        if (r->freq_factors)
            f[i] /= r->freq_factors[i];
    }
    if (r->scaling == ROPE_LINEAR)
        for (int i = 0; i < r->rot / 2; i++)
            f[i] /= (float)r->factor;
    else if (r->scaling == ROPE_LLAMA3)
        llama3(r, f);
    else if (r->scaling == ROPE_YARN)
        yarn(r, f);
}

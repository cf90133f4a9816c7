/* The kernels of one row against the same formula in double precision, on each CPU level. Bounds are in U =
 * 2^-24, half a unit in the last place of a float: each rounded operation adds at most one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "tests/unit/kernels/levels.h"

#define U 0x1p-24

static void assert_near(double want, double got, double bound, const char *what, double at)
{
    if (fabs(want - got) <= bound || (isnan(want) && isnan(got)))
        return;
    fail_msg("%s at %.9g: want %.12g, got %.12g, off by %.3g, allowed %.3g", what, at, want, got,
             fabs(want - got), bound);
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static void test_exp_error(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        float x[1024], y[1024];
        int n = 0;
        for (uint64_t u = 1; u < (uint64_t)1 << 32; u += 4099) { /* all exponents, both signs */
            x[n++] = from_bits((uint32_t)u);
            if (n < 1024)
                continue;
            n = 0;
            k.rows.exp(x, 1024, y);
            for (int i = 0; i < 1024; i++) {
                if (isnan(x[i])) {
                    assert_true(isnan(y[i]));
                } else if (x[i] < -0x1.5d589ep+6f) {
                    assert_true(y[i] == 0 && !signbit(y[i]));
                } else if (x[i] > 0x1.62e42ep+6f) {
                    assert_true(y[i] == INFINITY);
                } else {
                    int e;
                    double want = exp((double)x[i]);
                    frexp(want, &e);
                    assert_near(want, y[i], 0.9 * ldexp(1, e - 24), "exp", x[i]);
                    assert_true(y[i] >= 0x1p-126f);
                }
            }
        }
    }
}

static void test_exp_ends(void **state)
{
    assert_true(yk_expf(0) == 1 && yk_expf(-0.0f) == 1);
    assert_true(yk_expf(INFINITY) == INFINITY);
    assert_true(yk_expf(-INFINITY) == 0 && !signbit(yk_expf(-INFINITY)));
    assert_true(isnan(yk_expf(NAN)));
    assert_true(isfinite(yk_expf(0x1.62e42ep+6f)));
    assert_true(yk_expf(0x1.62e43p+6f) == INFINITY);
    assert_true(yk_expf(-0x1.5d589ep+6f) >= 0x1p-126f);
    assert_true(yk_expf(-0x1.5d58ap+6f) == 0);
}

static void test_rms_norm(void **state)
{
    static const int32_t sizes[] = {1, 7, 8, 9, 64, 576, 896, 4096, 5001};
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        uint64_t seed = 1;
        for (size_t c = 0; c < ARRAY_LEN(sizes); c++) {
            float x[5001], w[5001], y[5001];
            int32_t n = sizes[c];
            double ss = 0;
            for (int32_t i = 0; i < n; i++) {
                x[i] = uniform(&seed) * 30;
                w[i] = uniform(&seed);
                ss += (double)x[i] * x[i];
            }
            k.rows.rms_norm(x, w, n, 1e-5f, y);
            double inv = 1 / sqrt(ss / n + (double)1e-5f);
            /* n/8 fused additions a lane and three to join; half of that error after the root; six operations
             * more */
            double bound = (n / 8 + 4) / 2.0 + 6;
            for (int32_t i = 0; i < n; i++)
                assert_near(x[i] * inv * w[i], y[i], bound * U * fabs(x[i] * inv * w[i]), "rms_norm", n);
            k.rows.rms_norm(x, w, n, 1e-5f, x);
            assert_memory_equal(x, y, 4 * (size_t)n);
        }
        float zeros[9] = {0}, ones[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
        k.rows.rms_norm(zeros, ones, 9, 1e-6f, zeros);
        assert_true(zeros[8] == 0);
    }
}

static void test_glu(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        enum { N = 20001 };
        static float g[N], up[N], y[N];
        for (int i = 0; i < N; i++) {
            g[i] = (float)(i - N / 2) * 0.01f;
            up[i] = i % 2 ? 1.0f : -0.7f;
        }
        k.rows.glu[GLU_SILU](g, up, N, y);
        for (int i = 0; i < N; i++) {
            double want = g[i] / (1 + exp(-(double)g[i])) * up[i];
            /* exp 1.8 U, 1 + e, division, product; where exp overflows the result is 0 instead of 3e-37 */
            assert_near(want, y[i], 5 * U * fabs(want) + 3e-37, "silu", g[i]);
        }
        k.rows.glu[GLU_GELU_TANH](g, up, N, y);
        for (int i = 0; i < N; i++) {
            double x = g[i], u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x),
                   want = x / (1 + exp(-2 * u)) * up[i];
            if (fabs(x) < 5) /* the usual way to write it, where it is accurate */
                assert_near(want, 0.5 * x * (1 + tanh(u)) * up[i], 1e-13, "the test's gelu", x);
            /* the argument of exp is off by up to five roundings, constants included */
            assert_near(want, y[i], (5 + 5 * fabs(2 * u)) * U * fabs(want) + 3e-37, "gelu_tanh", x);
        }
        for (int kind = 0; kind < 2; kind++) {
            float ends[] = {INFINITY, -INFINITY, NAN, 3e38f, -3e38f}, one[] = {1, 1, 1, 1, 1};
            k.rows.glu[kind](ends, one, 5, ends);
            assert_true(ends[0] == INFINITY && isnan(ends[1]) && isnan(ends[2]));
            assert_true(ends[3] == 3e38f && ends[4] == 0);
        }
    }
}

static void test_rope(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        enum { HEADS = 3, DIM = 80, ROT = 44 };
        float x[HEADS * DIM], half[HEADS * DIM], pairs[HEADS * DIM], cosines[ROT / 2], sines[ROT / 2];
        uint64_t seed = 2;
        for (int i = 0; i < HEADS * DIM; i++)
            x[i] = uniform(&seed);
        for (int i = 0; i < ROT / 2; i++) {
            double angle = 17 * pow(10000, -2.0 * i / ROT);
            cosines[i] = (float)cos(angle);
            sines[i] = (float)sin(angle);
        }
        memcpy(half, x, sizeof(x));
        memcpy(pairs, x, sizeof(x));
        k.rows.rope_half(half, HEADS, DIM, ROT, cosines, sines);
        k.rows.rope_pairs(pairs, HEADS, DIM, ROT, cosines, sines);
        for (int h = 0; h < HEADS; h++) {
            for (int i = 0; i < ROT / 2; i++) {
                double c = cosines[i], s = sines[i];
                const float *p = x + h * DIM;
                double a = p[i], b = p[i + ROT / 2], bound = 2 * U * (fabs(a) + fabs(b));
                assert_near(a * c - b * s, half[h * DIM + i], bound, "rope_half a", i);
                assert_near(b * c + a * s, half[h * DIM + i + ROT / 2], bound, "rope_half b", i);
                a = p[2 * i], b = p[2 * i + 1], bound = 2 * U * (fabs(a) + fabs(b));
                assert_near(a * c - b * s, pairs[h * DIM + 2 * i], bound, "rope_pairs a", i);
                assert_near(b * c + a * s, pairs[h * DIM + 2 * i + 1], bound, "rope_pairs b", i);
            }
            assert_memory_equal(half + h * DIM + ROT, x + h * DIM + ROT, 4 * (DIM - ROT));
            assert_memory_equal(pairs + h * DIM + ROT, x + h * DIM + ROT, 4 * (DIM - ROT));
        }
    }
}

static void test_plain_arithmetic(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        float a[37], b[37], sum[37], product[37], scaled[37];
        uint64_t seed = 3;
        for (int i = 0; i < 37; i++) {
            a[i] = uniform(&seed);
            b[i] = uniform(&seed);
        }
        k.rows.add(a, b, 37, sum);
        k.rows.mul(a, b, 37, product);
        k.rows.scale(a, 0.3f, 37, scaled);
        for (int i = 0; i < 37; i++) {
            assert_true(sum[i] == (float)((double)a[i] + b[i]));
            assert_true(product[i] == (float)((double)a[i] * b[i]));
            assert_true(scaled[i] == (float)((double)a[i] * 0.3f));
        }
    }
}

static void test_kv_store(void **state)
{
    struct kernels k;
    FOR_EACH_LEVEL(k)
    {
        for (int32_t n = 1; n <= 70; n++) {
            float x[70], f32[70];
            uint16_t f16[70], bf16[70];
            uint8_t i8[76];
            uint64_t seed = (uint64_t)n;
            for (int32_t i = 0; i < n; i++)
                x[i] = uniform(&seed) * 8;
            k.rows.kv_store[KV_F32](x, n, f32);
            k.rows.kv_store[KV_F16](x, n, f16);
            k.rows.kv_store[KV_BF16](x, n, bf16);
            memset(i8, 0x55, sizeof(i8));
            k.rows.kv_store[KV_I8](x, n, i8);
            int32_t padded = ROUND_UP(n, 4);
            assert_int_equal(kv_record_bytes(KV_I8, n), padded + 4);
            float scale, amax = 0;
            memcpy(&scale, i8 + padded, 4);
            assert_memory_equal(x, f32, 4 * (size_t)n);
            for (int32_t i = 0; i < n; i++) {
                amax = fmaxf(amax, fabsf(x[i]));
                assert_int_equal(f16[i], f32_to_f16(x[i]));
                assert_int_equal(bf16[i], f32_to_bf16(x[i]));
                /* half a step, and the rounding of scale and of the two factors */
                assert_near(x[i], (double)(int8_t)i8[i] * scale, 0.5 * scale + 4 * U * fabs(x[i]), "i8", n);
            }
            assert_true(scale == amax / 127.0f);
            for (int32_t i = n; i < padded; i++)
                assert_int_equal(i8[i], 0);
        }
        /* What does not fit. */
        float odd[9] = {70000, -70000, INFINITY, -INFINITY, NAN, 65519.9f, 1e-8f, -0.0f, 1};
        uint16_t h[9];
        k.rows.kv_store[KV_F16](odd, 9, h);
        assert_int_equal(h[0], 0x7bff);
        assert_int_equal(h[1], 0xfbff);
        assert_int_equal(h[2], 0x7bff);
        assert_int_equal(h[3], 0xfbff);
        assert_true(isnan(f16_to_f32(h[4])));
        assert_int_equal(h[5], 0x7bff);
        assert_int_equal(h[6], 0);
        assert_int_equal(h[7], 0x8000);
        assert_int_equal(h[8], 0x3c00);
        k.rows.kv_store[KV_BF16](odd, 9, h);
        assert_int_equal(h[2], 0x7f80);
        assert_true(isnan(bf16_to_f32(h[4])));
        uint8_t r[16];
        float scale;
        for (int at = 2; at <= 4; at++) { /* an infinity or a NaN anywhere shows */
            float x[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
            x[at * 2] = odd[at];
            k.rows.kv_store[KV_I8](x, 9, r);
            memcpy(&scale, r + 12, 4);
            assert_true(isnan(scale));
            assert_int_equal(r[0] | r[8], 0);
        }
        float tiny[9] = {1e-45f, -1e-38f, 0x1.fp-101f};
        k.rows.kv_store[KV_I8](tiny, 9, r);
        static const uint8_t zeros[16];
        assert_memory_equal(r, zeros, 16);
        tiny[1] = -0x1p-100f;
        k.rows.kv_store[KV_I8](tiny, 9, r);
        assert_int_equal((int8_t)r[1], -127);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_error), cmocka_unit_test(test_exp_ends),
        cmocka_unit_test(test_rms_norm),  cmocka_unit_test(test_glu),
        cmocka_unit_test(test_rope),      cmocka_unit_test(test_plain_arithmetic),
        cmocka_unit_test(test_kv_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

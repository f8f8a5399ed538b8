"""The C99 functions that printed kernels call, without a library. Each is exact or as accurate as common hardware."""

from __future__ import annotations

PRELUDE = """\
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#error "the weights of this program are little-endian"
#endif
#if defined(__GNUC__)
#define IG_ALIAS __attribute__((may_alias))
#define IG_UNUSED __attribute__((unused))
#else
#define IG_ALIAS
#define IG_UNUSED
#endif
typedef float IG_ALIAS ig_f32;
typedef double IG_ALIAS ig_f64;
typedef int8_t IG_ALIAS ig_i8;
typedef int16_t IG_ALIAS ig_i16;
typedef int32_t IG_ALIAS ig_i32;
typedef int64_t IG_ALIAS ig_i64;
typedef uint8_t IG_ALIAS ig_u8;
typedef uint16_t IG_ALIAS ig_u16;
typedef uint32_t IG_ALIAS ig_u32;
typedef uint64_t IG_ALIAS ig_u64;
#if UINTPTR_MAX > 0xffffffffU
typedef int64_t ig_index;
#else
typedef int32_t ig_index; /* of what is known to fit */
#endif

IG_UNUSED static uint32_t ig_bits32(float x) { union { float f; uint32_t u; } c; c.f = x; return c.u; }
IG_UNUSED static float ig_float32(uint32_t x) { union { float f; uint32_t u; } c; c.u = x; return c.f; }
IG_UNUSED static uint64_t ig_bits64(double x) { union { double f; uint64_t u; } c; c.f = x; return c.u; }
IG_UNUSED static double ig_float64(uint64_t x) { union { double f; uint64_t u; } c; c.u = x; return c.f; }
IG_UNUSED static float ig_abs32(float x) { return ig_float32(ig_bits32(x) & 0x7fffffffU); }
IG_UNUSED static double ig_abs64(double x) { return ig_float64(ig_bits64(x) & 0x7fffffffffffffffULL); }
IG_UNUSED static float ig_copysign32(float x, float s) {
  return ig_float32((ig_bits32(x) & 0x7fffffffU) | (ig_bits32(s) & 0x80000000U));
}
IG_UNUSED static double ig_copysign64(double x, double s) {
  return ig_float64((ig_bits64(x) & 0x7fffffffffffffffULL) | (ig_bits64(s) & 0x8000000000000000ULL));
}
IG_UNUSED static float ig_bf16_to(uint16_t x) { return ig_float32((uint32_t)x << 16); }
IG_UNUSED static uint16_t ig_bf16_from(float x) {
  uint32_t u = ig_bits32(x);
  if (x != x) return (uint16_t)((u >> 16) | 0x40U);
  return (uint16_t)((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}
IG_UNUSED static float ig_f16_to(uint16_t x) {
  uint32_t e = (x >> 10) & 31U, m = x & 1023U, s = (uint32_t)(x & 0x8000U) << 16;
  if (e == 31U) return ig_float32(s | 0x7f800000U | (m << 13));
  if (e != 0U) return ig_float32(s | ((e + 112U) << 23) | (m << 13));
  return ig_copysign32((float)m * 5.9604644775390625e-8f, ig_float32(s));
}
IG_UNUSED static uint16_t ig_f16_from(float x) {
  uint32_t u = ig_bits32(x), s = (u >> 16) & 0x8000U, a = u & 0x7fffffffU, r;
  if (a > 0x7f800000U) return (uint16_t)(s | 0x7e00U);
  if (a >= 0x477ff000U) return (uint16_t)(s | 0x7c00U);
  if (a < 0x38800000U) { /* adding a half brings the last bit of a subnormal to the last place */
    r = ig_bits32(ig_float32(a) + 0.5f) - 0x3f000000U;
    return (uint16_t)(s | r);
  }
  r = a - 0x38000000U;
  return (uint16_t)(s | ((r + 0xfffU + ((r >> 13) & 1U)) >> 13));
}
/* the machine's own multiply-add where it has one */
#if defined(__GNUC__) && defined(__FP_FAST_FMAF)
#define IG_ADD32(a, b, c) __builtin_fmaf(a, b, c)
IG_UNUSED static float ig_fma32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
#define IG_ADD32(a, b, c) ((c) + (a) * (b))
IG_UNUSED static float ig_fma32(float a, float b, float c) {
  /* the product is exact; the sum is rounded to odd, so that a float of it is rounded once */
  double p = (double)a * (double)b, z = (double)c, s = p + z, t = s - p, e = (p - (s - t)) + (z - t);
  uint64_t u = ig_bits64(s);
  if (e != 0.0 && e == e && (u & 1U) == 0U && ig_abs64(s) <= 1.7976931348623157e308)
    s = ig_float64(((e > 0.0) == (s > 0.0)) ? u + 1U : u - 1U);
  return (float)s;
}
#endif
#if defined(__GNUC__) && defined(__FP_FAST_FMA)
#define IG_ADD64(a, b, c) __builtin_fma(a, b, c)
IG_UNUSED static double ig_fma64(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
#define IG_ADD64(a, b, c) ((c) + (a) * (b))
IG_UNUSED static double ig_fma64(double a, double b, double c) {
  /* Dekker's product and Knuth's sum; beyond the range of the splitting, two roundings */
  double p = a * b, m = ig_abs64(p), x = ig_abs64(a), y = ig_abs64(b), s, t, e, ah, al, bh, bl;
  if (!(m < 1e300) || !(x < 1e290) || !(y < 1e290) || m < 1e-270) return p + c;
  t = 134217729.0 * a; ah = t - (t - a); al = a - ah;
  t = 134217729.0 * b; bh = t - (t - b); bl = b - bh;
  e = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
  s = p + c;
  if (!(ig_abs64(s) < 1e300)) return s;
  t = s - p;
  return s + (((p - (s - t)) + (c - t)) + e);
}
#endif
IG_UNUSED static double ig_sqrt64(double x) {
  uint64_t u = ig_bits64(x), m, q = 0, r = 0;
  int e = (int)(u >> 52), i;
  if (x == 0.0 || x != x || u == 0x7ff0000000000000ULL) return x;
  if (x < 0.0) return ig_float64(0x7ff8000000000000ULL);
  m = u & 0xfffffffffffffULL;
  if (e == 0) { e = 1; while ((m >> 52) == 0U) { m <<= 1; e--; } } else m |= 0x10000000000000ULL;
  e -= 1023;
  if ((e & 1) != 0) { m <<= 1; e--; }
  for (i = 0; i < 54; i++) { /* two digits of m, then of zero, at a time */
    r = (r << 2) | (i < 27 ? (m >> (52 - 2 * i)) & 3U : 0U);
    q <<= 1;
    if (r >= ((q << 1) | 1U)) { r -= (q << 1) | 1U; q |= 1U; }
  }
  q = (q >> 1) + ((q & 1U) & (uint64_t)(r != 0U || (q & 2U) != 0U));
  return ig_float64(q + ((uint64_t)(e / 2 + 1022) << 52));
}
IG_UNUSED static float ig_sqrt32(float x) { return (float)ig_sqrt64((double)x); }
IG_UNUSED static double ig_trunc64(double x) {
  return ig_abs64(x) < 4503599627370496.0 ? ig_copysign64((double)(int64_t)x, x) : x;
}
IG_UNUSED static double ig_floor64(double x) {
  double t = ig_trunc64(x);
  return t > x ? t - 1.0 : t;
}
IG_UNUSED static double ig_ceil64(double x) {
  double t = ig_trunc64(x);
  return t < x ? ig_copysign64(t + 1.0, x) : t;
}
IG_UNUSED static double ig_round_even64(double x) {
  double t = ig_trunc64(x), d = ig_abs64(x - t);
  if (d > 0.5 || (d == 0.5 && ((int64_t)t & 1) != 0)) t += ig_copysign64(1.0, x);
  return ig_copysign64(t, x);
}
IG_UNUSED static float ig_trunc32(float x) { return (float)ig_trunc64((double)x); }
IG_UNUSED static float ig_floor32(float x) { return (float)ig_floor64((double)x); }
IG_UNUSED static float ig_ceil32(float x) { return (float)ig_ceil64((double)x); }
IG_UNUSED static float ig_round_even32(float x) { return (float)ig_round_even64((double)x); }
IG_UNUSED static double ig_rem64(double x, double y) {
  double a = ig_abs64(x), b = ig_abs64(y);
  if (x != x || y != y || b == 0.0 || !(a <= 1.7976931348623157e308)) return ig_float64(0x7ff8000000000000ULL);
  while (a >= b) { /* the largest b * 2^n up to a, whose difference from a is exact */
    double t = b;
    while (t <= a * 0.5) t *= 2.0;
    if (t > a) t *= 0.5; /* half of a subnormal was rounded up */
    a -= t;
  }
  return ig_copysign64(a, x);
}
IG_UNUSED static float ig_rem32(float x, float y) { return (float)ig_rem64((double)x, (double)y); }
IG_UNUSED static float ig_ldexp32(float x, float n) {
  float f = x != x ? 1.0f : ig_float32((uint32_t)((int32_t)n / 2 + 127) << 23);
  return x * f * f;
}
IG_UNUSED static double ig_ldexp64(double x, double n) {
  double f = x != x ? 1.0 : ig_float64((uint64_t)((int64_t)n / 2 + 1023) << 52);
  return x * f * f;
}
IG_UNUSED static float ig_min32(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
IG_UNUSED static float ig_max32(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
IG_UNUSED static double ig_min64(double a, double b) { return a != a ? a : b != b ? b : a < b ? a : b; }
IG_UNUSED static double ig_max64(double a, double b) { return a != a ? a : b != b ? b : a > b ? a : b; }
IG_UNUSED static int32_t ig_to_i32(double x) {
  return x >= -2147483648.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}
IG_UNUSED static int64_t ig_to_i64(double x) {
  return x >= -9223372036854775808.0 && x < 9223372036854775808.0 ? (int64_t)x : INT64_MIN;
}
IG_UNUSED static uint64_t ig_to_u64(double x) {
  if (x >= 9223372036854775808.0) return x < 18446744073709551616.0 ? (uint64_t)x : 0U;
  return (uint64_t)ig_to_i64(x);
}
IG_UNUSED static int64_t ig_div(int64_t a, int64_t b) { return b == -1 ? (int64_t)(0U - (uint64_t)a) : a / b; }
IG_UNUSED static int64_t ig_mod(int64_t a, int64_t b) { return b == -1 ? 0 : a % b; }
#if defined(__POPCNT__) && defined(__GNUC__)
IG_UNUSED static int ig_popcnt32(uint32_t x) { return __builtin_popcount(x); }
#else
IG_UNUSED static int ig_popcnt32(uint32_t x) {
  x -= x >> 1 & 0x55555555U;
  x = (x & 0x33333333U) + (x >> 2 & 0x33333333U);
  return (int)(((x + (x >> 4)) & 0x0f0f0f0fU) * 0x01010101U >> 24);
}
#endif
IG_UNUSED static int ig_popcnt(uint64_t x) { return ig_popcnt32((uint32_t)x) + ig_popcnt32((uint32_t)(x >> 32)); }
IG_UNUSED static int ig_clz(uint64_t x, int bits) { int n = bits; for (; x != 0U; x >>= 1) n--; return n; }
/* (a * b + 2^31) >> 32, and min(max(x, -128), 127) */
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
IG_UNUSED static inline int32_t ig_mul_high(int32_t a, int32_t b) {
  int32_t r;
  __asm__("smmulr %0, %1, %2" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
#else
IG_UNUSED static int32_t ig_mul_high(int32_t a, int32_t b) { return (int32_t)(((int64_t)a * b + 2147483648LL) >> 32); }
#endif
#if defined(__ARM_FEATURE_SAT) && defined(__GNUC__)
IG_UNUSED static inline int32_t ig_clamp_i8(int32_t x) {
  int32_t r;
  __asm__("ssat %0, #8, %1" : "=r"(r) : "r"(x));
  return r;
}
#else
IG_UNUSED static int32_t ig_clamp_i8(int32_t x) { return x < -128 ? -128 : x > 127 ? 127 : x; }
#endif
/* dot products of four bytes, which words hold, the first in the lowest bits, and of sixteen */
#if defined(__GNUC__)
IG_UNUSED static inline uint32_t ig_load4(const void *p) { uint32_t w; __builtin_memcpy(&w, p, 4); return w; }
#else
IG_UNUSED static uint32_t ig_load4(const void *p) {
  const uint8_t *b = (const uint8_t *)p;
  return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}
#endif
IG_UNUSED static void ig_store4(void *p, uint32_t w) {
  uint8_t *b = (uint8_t *)p;
  int i;
  for (i = 0; i < 4; i++) b[i] = (uint8_t)(w >> (8 * i) & 0xffU);
}
#if defined(__ARM_FEATURE_DSP) && defined(__GNUC__)
/* halves of the even bytes and of the odd ones; assembly, as compilers move an intrinsic's saturation flag around */
IG_UNUSED static inline uint32_t ig_even(uint32_t x) {
  uint32_t r;
  __asm__("sxtb16 %0, %1" : "=r"(r) : "r"(x));
  return r;
}
IG_UNUSED static inline uint32_t ig_odd(uint32_t x) {
  uint32_t r;
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(r) : "r"(x));
  return r;
}
IG_UNUSED static inline int32_t ig_smlad(uint32_t a, uint32_t b, int32_t c) {
  int32_t r;
  __asm__("smlad %0, %1, %2, %3" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
IG_UNUSED static inline int32_t ig_dot4_i8_i8(uint32_t a, uint32_t b, int32_t c) {
  return ig_smlad(ig_odd(a), ig_odd(b), ig_smlad(ig_even(a), ig_even(b), c));
}
IG_UNUSED static inline int32_t ig_dot4_u8_i8(uint32_t a, uint32_t b, int32_t c) {
  return ig_smlad(a >> 8 & 0xff00ffU, ig_odd(b), ig_smlad(a & 0xff00ffU, ig_even(b), c));
}
#elif defined(__SSE2__) && defined(__GNUC__)
#include <emmintrin.h>
IG_UNUSED static inline __m128i ig_signed(uint32_t x) {
  __m128i v = _mm_cvtsi32_si128((int)x);
  return _mm_srai_epi16(_mm_unpacklo_epi8(v, v), 8);
}
IG_UNUSED static inline __m128i ig_unsigned(uint32_t x) {
  return _mm_unpacklo_epi8(_mm_cvtsi32_si128((int)x), _mm_setzero_si128());
}
IG_UNUSED static inline int32_t ig_pairs(__m128i a, __m128i b, int32_t c) {
  __m128i p = _mm_madd_epi16(a, b);
  return (int32_t)((uint32_t)c + (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(p, _mm_shuffle_epi32(p, 1))));
}
IG_UNUSED static inline int32_t ig_dot4_i8_i8(uint32_t a, uint32_t b, int32_t c) {
  return ig_pairs(ig_signed(a), ig_signed(b), c);
}
IG_UNUSED static inline int32_t ig_dot4_u8_i8(uint32_t a, uint32_t b, int32_t c) {
  return ig_pairs(ig_unsigned(a), ig_signed(b), c);
}
#else
#define IG_BYTE(x, i) ((int32_t)(int8_t)((x) >> (8 * (i)) & 0xffU))
IG_UNUSED static int32_t ig_dot4_i8_i8(uint32_t a, uint32_t b, int32_t c) {
  int32_t s = IG_BYTE(a, 0) * IG_BYTE(b, 0) + IG_BYTE(a, 1) * IG_BYTE(b, 1) + IG_BYTE(a, 2) * IG_BYTE(b, 2);
  return (int32_t)((uint32_t)c + (uint32_t)(s + IG_BYTE(a, 3) * IG_BYTE(b, 3)));
}
#define IG_UBYTE(x, i) ((int32_t)((x) >> (8 * (i)) & 0xffU))
IG_UNUSED static int32_t ig_dot4_u8_i8(uint32_t a, uint32_t b, int32_t c) {
  int32_t s = IG_UBYTE(a, 0) * IG_BYTE(b, 0) + IG_UBYTE(a, 1) * IG_BYTE(b, 1) + IG_UBYTE(a, 2) * IG_BYTE(b, 2);
  return (int32_t)((uint32_t)c + (uint32_t)(s + IG_UBYTE(a, 3) * IG_BYTE(b, 3)));
}
#endif
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 1)
#include <arm_mve.h>
typedef int8x16_t ig_bytes16;
IG_UNUSED static inline ig_bytes16 ig_load16(const ig_i8 *p) { return vldrbq_s8((const int8_t *)p); }
IG_UNUSED static inline ig_bytes16 ig_load_part(const ig_i8 *p, uint32_t n) {
  return vldrbq_z_s8((const int8_t *)p, vctp8q(n));
}
IG_UNUSED static inline int32_t ig_dot16_i8_i8(ig_bytes16 a, ig_bytes16 b, int32_t c) { return vmladavaq_s8(c, a, b); }
#else
typedef struct { int8_t byte[16]; } ig_bytes16;
IG_UNUSED static ig_bytes16 ig_load_part(const ig_i8 *p, uint32_t n) {
  ig_bytes16 r;
  uint32_t i;
  for (i = 0; i < 16U; i++) r.byte[i] = i < n ? p[i] : (int8_t)0;
  return r;
}
IG_UNUSED static ig_bytes16 ig_load16(const ig_i8 *p) { return ig_load_part(p, 16U); }
IG_UNUSED static int32_t ig_dot16_i8_i8(ig_bytes16 a, ig_bytes16 b, int32_t c) {
  int32_t s = 0;
  int i;
  for (i = 0; i < 16; i++) s += a.byte[i] * b.byte[i];
  return (int32_t)((uint32_t)c + (uint32_t)s);
}
#endif
"""

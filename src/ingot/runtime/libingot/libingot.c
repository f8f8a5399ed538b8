/* See ingot.h. Formats: runtime/artifact.py (the file), runtime/libingot/words.py (the plan), targets/cpu/driver.py
 * (what the driver reads). What is checked and placed here is what runtime/program.py, bind.py and placement.py
 * check and place.
 *
 * A plan comes from a file: numbers are checked when they are read, sums and products for overflow, and no memory is
 * given to a kernel that is not its buffer's. */
#define _GNU_SOURCE
#include "ingot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH "x86_64"
#elif defined(__aarch64__)
#define ARCH "aarch64"
#else
#error "libingot: x86-64 and AArch64 only"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "libingot: little-endian machines only"
#endif

#define VERSION 15
#define PREFIX_BYTES 64
#define DIGEST_BYTES 16
#define PAGE 4096
#define BLOCK 65536
#define ALIGN 64
#define MAX_RANK 64
#define MAX_STACK 256 /* values of an expression at a time */
#define MAX_SIZE ((int64_t)1 << 40)
#define MAX_CHUNKS ((int64_t)1 << 31)
#define MAX_TOTAL_CHUNKS ((int64_t)1 << 62)
#define ADDRESS_SPACE ((int64_t)1 << 47)
#define UNSET INT64_MIN

/* ---- errors */

static _Thread_local char message[256] = "no error";

const char *ingot_error(void) { return message; }

__attribute__((format(printf, 2, 3))) static int fail(int code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}

#define TRY(call)                      \
  do {                                 \
    int code_ = (call);                \
    if (code_ != INGOT_OK) return code_; \
  } while (0)

static int out_of_memory(void) { return fail(INGOT_MEMORY, "out of memory"); }

/* ---- BLAKE2b (RFC 7693), 16 bytes of digest, no key */

static const uint64_t blake_iv[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                     0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
static const uint8_t blake_sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

typedef struct {
  uint64_t h[8], total;
  uint8_t buffer[128];
  size_t used;
} blake;

static uint64_t rotated(uint64_t x, int n) { return x >> n | x << (64 - n); }

static void blake_mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
  v[a] += v[b] + x;
  v[d] = rotated(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = rotated(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = rotated(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = rotated(v[b] ^ v[c], 63);
}

static void blake_block(blake *state, const uint8_t *block, int is_last) {
  uint64_t v[16], m[16];
  memcpy(m, block, sizeof m);
  memcpy(v, state->h, sizeof state->h);
  memcpy(v + 8, blake_iv, sizeof blake_iv);
  v[12] ^= state->total;
  if (is_last) v[14] = ~v[14];
  for (int i = 0; i < 12; i++) {
    const uint8_t *s = blake_sigma[i % 10];
    for (int j = 0; j < 4; j++) blake_mix(v, j, 4 + j, 8 + j, 12 + j, m[s[2 * j]], m[s[2 * j + 1]]);
    for (int j = 0; j < 4; j++)
      blake_mix(v, j, 4 + (j + 1) % 4, 8 + (j + 2) % 4, 12 + (j + 3) % 4, m[s[8 + 2 * j]], m[s[9 + 2 * j]]);
  }
  for (int i = 0; i < 8; i++) state->h[i] ^= v[i] ^ v[i + 8];
}

static void blake_begin(blake *state) {
  memset(state, 0, sizeof *state);
  memcpy(state->h, blake_iv, sizeof blake_iv);
  state->h[0] ^= 0x01010000 ^ DIGEST_BYTES;
}

static void blake_add(blake *state, const uint8_t *data, size_t nbytes) {
  while (nbytes) {
    if (state->used == sizeof state->buffer) {
      state->total += state->used;
      blake_block(state, state->buffer, 0);
      state->used = 0;
    }
    size_t part = sizeof state->buffer - state->used;
    if (part > nbytes) part = nbytes;
    memcpy(state->buffer + state->used, data, part);
    state->used += part;
    data += part;
    nbytes -= part;
  }
}

static void blake_end(blake *state, uint8_t *digest) {
  state->total += state->used;
  memset(state->buffer + state->used, 0, sizeof state->buffer - state->used);
  blake_block(state, state->buffer, 1);
  memcpy(digest, state->h, DIGEST_BYTES);
}

static void digest_of(const uint8_t *data, size_t nbytes, uint8_t *digest) {
  blake state;
  blake_begin(&state);
  blake_add(&state, data, nbytes);
  blake_end(&state, digest);
}

static int has_digest(const uint8_t *data, size_t nbytes, const uint8_t *digest) {
  uint8_t own[DIGEST_BYTES];
  digest_of(data, nbytes, own);
  return memcmp(own, digest, DIGEST_BYTES) == 0;
}

/* Of the sums of blocks, and of what is left behind the last block. */
static void weights_digest(const uint8_t *data, size_t nbytes, uint8_t *digest) {
  blake state;
  blake_begin(&state);
  size_t whole = nbytes / BLOCK * BLOCK;
  for (size_t at = 0; at < whole; at += BLOCK) {
    uint64_t sum = 0, word;
    for (size_t i = 0; i < BLOCK; i += 8) {
      memcpy(&word, data + at + i, 8);
      sum += word;
    }
    blake_add(&state, (const uint8_t *)&sum, 8);
  }
  blake_add(&state, data + whole, nbytes - whole);
  blake_end(&state, digest);
}

/* ---- the plan in memory */

typedef const int64_t *expr; /* see words.py; checked when it is read */

enum { CONSTANT, NAME, OPERATOR };
enum { PLUS, MINUS, TIMES, FLOORDIV, MOD, MAX, MIN, OPERATORS };
enum { ARENA, WEIGHT, INPUT, OUTPUT, SIZE, TABLE, KINDS };

static const struct {
  const char *name;
  size_t itemsize;
} dtypes[] = {{"f64", 8}, {"f32", 4}, {"f16", 2}, {"i8", 1}, {"i16", 2}, {"i32", 4}, {"i64", 8}, {"u8", 1}, {"u16", 2},
              {"u32", 4}, {"u64", 8}, {"bool", 1}, {"bf16", 2}, {"f8e4m3fn", 1}, {"f8e5m2", 1}, {"f8e4m3fnuz", 1},
              {"f8e5m2fnuz", 1}, {"f8e8m0fnu", 1}, {"f4e2m1fn", 1}, {"i4", 1}, {"i2", 1}, {"u4", 1}, {"u2", 1}};
#define DTYPES ((int64_t)(sizeof dtypes / sizeof *dtypes))

typedef struct {
  char *name;
  int dtype, rank, elements;
  expr *dims;    /* rank of the shape, then the elements */
  int64_t *open; /* what `ingot_spec` shows */
} spec;

typedef struct {
  char *name;
  int has_lo, has_hi;
  int64_t lo, hi, row, position, slope, start;
} named; /* a symbol; of a size lo, hi and bound */

typedef struct {
  named base;
  expr bound;
} size_entry;

typedef struct {
  int64_t kind, first, last, offset, index, halo, fill, alias;
  expr nbytes, alias_at;
} buffer;

typedef struct {
  int64_t buffer;
  expr offset;
} argument;

typedef struct {
  int64_t kernel, target, arguments, dims;
  argument *argument;
  expr *dim, chunks, rounds;
} step;

struct ingot_model {
  const uint8_t *file; /* mapped, or the caller's */
  size_t file_bytes;
  int is_mapped;
  uint8_t *code;
  size_t code_bytes;
  const uint8_t *weights;
  size_t weights_bytes;
  void *weights_copy;
  const uint8_t *first; /* of the state */
  int64_t *stored;
  int64_t *words;
  int64_t scratch, run, worker, stop, clock;
  int64_t symbols, sizes, inputs, outputs, states, conditions, buffers, steps, table_words;
  named *symbol;
  size_entry *size;
  spec *input, *output, *state;
  int *copied;
  expr *condition;
  buffer *buffer;
  step *step;
  void **blocks; /* that are freed with it */
  size_t block_count, block_room;
};

static spec *argument_spec(const ingot_model *m, int64_t i) {
  return i < m->inputs ? m->input + i : m->state + (i - m->inputs);
}

static spec *result_spec(const ingot_model *m, int64_t i) {
  return i < m->states ? m->state + i : m->output + (i - m->states);
}

/* ---- numbers */

static int floored(int64_t a, int64_t b, int64_t *quotient, int64_t *rest) {
  if (b == 0 || (a == INT64_MIN && b == -1)) return 1;
  *quotient = a / b - (a % b != 0 && (a % b < 0) != (b < 0));
  *rest = a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
  return 0;
}

static int applied(int64_t operation, int64_t a, int64_t b, int64_t *result) {
  int64_t other;
  switch (operation) {
    case PLUS: return __builtin_add_overflow(a, b, result);
    case MINUS: return __builtin_sub_overflow(a, b, result);
    case TIMES: return __builtin_mul_overflow(a, b, result);
    case FLOORDIV: return floored(a, b, result, &other);
    case MOD: return floored(a, b, &other, result);
    case MAX: *result = a > b ? a : b; return 0;
    default: *result = a < b ? a : b; return 0;
  }
}

/* The value of an expression; values: of symbols and sizes. */
static int evaluated(expr e, const int64_t *values, int64_t *result) {
  if (e[0] == 0) {
    *result = e[1];
    return INGOT_OK;
  }
  int64_t stack[MAX_STACK], count = 0;
  for (int64_t i = 0; i < e[0]; i++) {
    int64_t kind = e[1 + 2 * i], value = e[2 + 2 * i];
    if (kind != OPERATOR) {
      stack[count++] = kind == CONSTANT ? value : values[value];
      continue;
    }
    count--;
    if (applied(value, stack[count - 1], stack[count], &stack[count - 1]))
      return fail(INGOT_SHAPE, "a size is divided by zero, or has over 64 bits");
  }
  *result = stack[0];
  return INGOT_OK;
}

typedef struct {
  int64_t lo, hi;
} span;

/* Bounds of an expression whose names are within `spans`: as runtime/expr.py's `span`. */
static int spanned(expr e, const span *spans, span *result) {
  if (e[0] == 0) {
    result->lo = result->hi = e[1];
    return INGOT_OK;
  }
  span stack[MAX_STACK];
  int64_t count = 0;
  for (int64_t i = 0; i < e[0]; i++) {
    int64_t kind = e[1 + 2 * i], value = e[2 + 2 * i];
    if (kind != OPERATOR) {
      span constant = {value, value};
      stack[count++] = kind == CONSTANT ? constant : spans[value];
      continue;
    }
    span b = stack[--count], a = stack[count - 1], r;
    int64_t ends[4];
    int failed = 0, used = 2;
    if (value == MOD) {
      if (a.lo == a.hi && b.lo == b.hi && b.lo > 0) {
        failed = applied(MOD, a.lo, b.lo, ends);
        ends[1] = ends[0];
      } else {
        ends[0] = 0;
        ends[1] = b.hi > 1 ? b.hi - 1 : 0;
      }
    } else {
      if (value == FLOORDIV) {
        b.lo = b.lo > 1 ? b.lo : 1;
        b.hi = b.hi > 1 ? b.hi : 1;
      }
      if (value == MINUS) {
        int64_t low = b.lo;
        b.lo = b.hi;
        b.hi = low;
      }
      failed |= applied(value, a.lo, b.lo, ends);
      failed |= applied(value, a.hi, b.hi, ends + 1);
      if (value == TIMES || value == FLOORDIV) {
        failed |= applied(value, a.lo, b.hi, ends + 2);
        failed |= applied(value, a.hi, b.lo, ends + 3);
        used = 4;
      }
    }
    if (failed) return fail(INGOT_SHAPE, "a size has over 64 bits");
    r.lo = r.hi = ends[0];
    for (int j = 1; j < used; j++) {
      if (ends[j] < r.lo) r.lo = ends[j];
      if (ends[j] > r.hi) r.hi = ends[j];
    }
    stack[count - 1] = r;
  }
  *result = stack[0];
  return INGOT_OK;
}

/* Whether an expression names a size that the run computes. */
static int is_computed(const ingot_model *m, expr e) {
  for (int64_t i = 0; i < e[0]; i++)
    if (e[1 + 2 * i] == NAME && e[2 + 2 * i] >= m->symbols) return 1;
  return 0;
}

static int64_t aligned(int64_t nbytes) { return (nbytes + ALIGN - 1) / ALIGN * ALIGN; }

/* ---- reading a plan */

typedef struct {
  ingot_model *model;
  int64_t *next, *end;
  int64_t names; /* that expressions may use */
} reader;

static int malformed(const char *what) { return fail(INGOT_PLAN, "the plan is malformed: %s", what); }

/* `count` items of zeroed memory that is freed with the model. */
static void *block(ingot_model *m, int64_t count, size_t nbytes) {
  if (m->block_count == m->block_room) {
    size_t room = m->block_room ? 2 * m->block_room : 64;
    void **more = realloc(m->blocks, room * sizeof *more);
    if (!more) return NULL;
    m->blocks = more;
    m->block_room = room;
  }
  void *memory = calloc(count ? (size_t)count : 1, nbytes);
  if (memory) m->blocks[m->block_count++] = memory;
  return memory;
}

static int read_word(reader *r, int64_t *value) {
  if (r->next == r->end) return malformed("it ends early");
  *value = *r->next++;
  return INGOT_OK;
}

static int read_between(reader *r, int64_t lo, int64_t hi, const char *what, int64_t *value) {
  TRY(read_word(r, value));
  return *value < lo || *value > hi ? malformed(what) : INGOT_OK;
}

/* A count of items of at least one word each. */
static int read_count(reader *r, int64_t *count) { return read_between(r, 0, r->end - r->next - 1, "a count", count); }

static int read_text(reader *r, char **text) {
  int64_t nbytes;
  TRY(read_between(r, 0, (r->end - r->next) * 8, "a text", &nbytes));
  if ((nbytes + 7) / 8 > r->end - r->next) return malformed("a text");
  *text = block(r->model, nbytes + 1, 1);
  if (!*text) return out_of_memory();
  memcpy(*text, r->next, (size_t)nbytes);
  r->next += (nbytes + 7) / 8;
  return INGOT_OK;
}

static int read_expr(reader *r, expr *e) {
  int64_t count;
  *e = r->next;
  TRY(read_between(r, 0, (r->end - r->next) / 2, "an expression", &count));
  if (count == 0) {
    int64_t value;
    return read_word(r, &value);
  }
  int64_t depth = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t kind = 0, value = 0;
    TRY(read_between(r, CONSTANT, OPERATOR, "an expression's item", &kind));
    TRY(read_word(r, &value));
    if (kind == NAME && (value < 0 || value >= r->names)) return malformed("an expression's name");
    if (kind == OPERATOR && (value < 0 || value >= OPERATORS || depth < 2)) return malformed("an operator");
    depth += kind == OPERATOR ? -1 : 1;
    if (depth > MAX_STACK) return malformed("an expression is too deep");
  }
  return depth == 1 ? INGOT_OK : malformed("an expression");
}

static int read_exprs(reader *r, int64_t most, int64_t *count, expr **list) {
  TRY(read_count(r, count));
  if (*count > most) return malformed("too many sizes");
  *list = block(r->model, *count, sizeof **list);
  if (!*list) return out_of_memory();
  for (int64_t i = 0; i < *count; i++) TRY(read_expr(r, *list + i));
  return INGOT_OK;
}

static int read_spec(reader *r, spec *s, int takes_elements) {
  int64_t dtype, rank, count;
  expr *dims, *elements;
  TRY(read_text(r, &s->name));
  TRY(read_between(r, 0, DTYPES - 1, "a type", &dtype));
  TRY(read_exprs(r, MAX_RANK, &rank, &dims));
  TRY(read_exprs(r, takes_elements ? 1 << 20 : 0, &count, &elements));
  s->dtype = (int)dtype;
  s->rank = (int)rank;
  s->elements = (int)count;
  s->dims = block(r->model, rank + count, sizeof *s->dims);
  s->open = block(r->model, rank, sizeof *s->open);
  if (!s->dims || !s->open) return out_of_memory();
  int64_t size = 1;
  for (int64_t i = 0; i < rank; i++) {
    s->dims[i] = dims[i];
    s->open[i] = dims[i][0] ? -1 : dims[i][1];
    if (dims[i][0] == 0 && dims[i][1] < 0) return malformed("a negative size");
    if (dims[i][0] || __builtin_mul_overflow(size, dims[i][1], &size)) size = -1;
  }
  for (int64_t i = 0; i < count; i++) s->dims[rank + i] = elements[i];
  const char *name = dtypes[dtype].name;
  int is_integer = (name[0] == 'i' || name[0] == 'u') && dtypes[dtype].itemsize * 8 == (size_t)atoi(name + 1);
  if (count && (size != count || !is_integer))
    return malformed("elements that are sizes");
  return INGOT_OK;
}

static int read_specs(reader *r, int64_t *count, spec **specs, int takes_elements) {
  TRY(read_count(r, count));
  *specs = block(r->model, *count, sizeof **specs);
  if (!*specs) return out_of_memory();
  for (int64_t i = 0; i < *count; i++) TRY(read_spec(r, *specs + i, takes_elements));
  return INGOT_OK;
}

static int read_bound(reader *r, int *has, int64_t *value) {
  int64_t flag;
  TRY(read_between(r, 0, 1, "a bound", &flag));
  *has = (int)flag;
  return read_word(r, value);
}

#if defined(__aarch64__)
/* Whether the processor has a feature, by Linux's name: what the kernel tells, also to a program in an emulator. */
static int has_feature(const char *info, const char *name) {
  static const struct {
    const char *name;
    unsigned long type, bit;
  } known[] = {{"fp", AT_HWCAP, 0},       {"asimd", AT_HWCAP, 1},     {"atomics", AT_HWCAP, 8},
               {"asimdhp", AT_HWCAP, 10}, {"asimdrdm", AT_HWCAP, 12}, {"asimddp", AT_HWCAP, 20},
               {"i8mm", AT_HWCAP2, 13},   {"bf16", AT_HWCAP2, 14}};
  (void)info;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (!strcmp(known[i].name, name)) return (int)(getauxval(known[i].type) >> known[i].bit & 1);
  return 0;
}
#else
/* Whether /proc/cpuinfo lists the feature, by Linux's name. */
static int has_feature(const char *info, const char *name) {
  size_t length = strlen(name);
  for (const char *at = length ? info : NULL; at && (at = strstr(at, name)); at += length)
    if ((at == info || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\n' || !at[length])) return 1;
  return 0;
}
#endif

static int read_machine(reader *r) {
  char *arch, *name;
  int64_t count;
  TRY(read_text(r, &arch));
  if (strcmp(arch, ARCH)) return fail(INGOT_MACHINE, "compiled for %.32s, and this machine is " ARCH, arch);
  TRY(read_count(r, &count));
  char *info = block(r->model, PAGE * 4, 1);
  if (!info) return out_of_memory();
  FILE *file = fopen("/proc/cpuinfo", "r");
  for (int found = 0; file && !found && fgets(info, PAGE * 4, file);)
    found = !strncmp(info, "flags", 5) || !strncmp(info, "Features", 8);
  if (file) fclose(file);
  for (int64_t i = 0; i < count; i++) {
    TRY(read_text(r, &name));
    if (!has_feature(info, name)) return fail(INGOT_MACHINE, "this processor has no %.32s", name);
  }
  return INGOT_OK;
}

static int read_names(reader *r) {
  ingot_model *m = r->model;
  TRY(read_count(r, &m->symbols));
  m->symbol = block(m, m->symbols, sizeof *m->symbol);
  if (!m->symbol) return out_of_memory();
  for (named *s = m->symbol; s < m->symbol + m->symbols; s++) {
    TRY(read_text(r, &s->name));
    TRY(read_bound(r, &s->has_lo, &s->lo));
    TRY(read_bound(r, &s->has_hi, &s->hi));
    TRY(read_word(r, &s->row));
    TRY(read_word(r, &s->position));
    TRY(read_between(r, 1, INT64_MAX, "a symbol's slope", &s->slope));
    TRY(read_word(r, &s->start));
  }
  r->names = m->symbols;
  TRY(read_count(r, &m->sizes));
  m->size = block(m, m->sizes, sizeof *m->size);
  if (!m->size) return out_of_memory();
  for (size_entry *s = m->size; s < m->size + m->sizes; s++, r->names++) {
    s->base.has_lo = 1;
    TRY(read_text(r, &s->base.name));
    TRY(read_word(r, &s->base.lo));
    TRY(read_bound(r, &s->base.has_hi, &s->base.hi));
    TRY(read_expr(r, &s->bound));
  }
  return INGOT_OK;
}

static int read_state(reader *r) {
  ingot_model *m = r->model;
  TRY(read_count(r, &m->states));
  m->state = block(m, m->states, sizeof *m->state);
  m->copied = block(m, m->states, sizeof *m->copied);
  if (!m->state || !m->copied) return out_of_memory();
  for (int64_t i = 0; i < m->states; i++) {
    int64_t copied;
    TRY(read_spec(r, m->state + i, 0));
    TRY(read_between(r, 0, 1, "a flag", &copied));
    m->copied[i] = (int)copied;
    for (int k = 0; k < m->state[i].rank; k++)
      if (m->state[i].open[k] < 0) return malformed("state of open size");
  }
  return INGOT_OK;
}

/* Sizes that no run computes: offsets and shapes of arguments do not depend on them. */
static int check_symbols_only(const ingot_model *m, expr e, const char *what) {
  return is_computed(m, e) ? malformed(what) : INGOT_OK;
}

static int read_buffers(reader *r) {
  ingot_model *m = r->model;
  TRY(read_count(r, &m->buffers));
  m->buffer = block(m, m->buffers, sizeof *m->buffer);
  if (!m->buffer) return out_of_memory();
  const int64_t counts[KINDS] = {INT64_MAX, INT64_MAX, m->inputs + m->states, m->states + m->outputs, m->sizes, 1};
  for (buffer *b = m->buffer; b < m->buffer + m->buffers; b++) {
    TRY(read_between(r, 0, KINDS - 1, "a buffer's kind", &b->kind));
    TRY(read_word(r, &b->first));
    TRY(read_word(r, &b->last));
    TRY(read_word(r, &b->offset));
    TRY(read_word(r, &b->index));
    TRY(read_between(r, -1, INT64_MAX, "a halo", &b->halo));
    TRY(read_between(r, 0, 255, "a fill", &b->fill));
    TRY(read_expr(r, &b->nbytes));
    TRY(read_between(r, -1, m->buffers - 1, "an alias", &b->alias));
    TRY(read_expr(r, &b->alias_at));
    TRY(check_symbols_only(m, b->alias_at, "an alias"));
    if (b->nbytes[0] == 0 && b->nbytes[1] < 0) return malformed("a buffer's size");
    if (b->alias >= 0) continue;
    if (b->kind != ARENA && b->kind != WEIGHT && (b->index < 0 || b->index >= counts[b->kind]))
      return malformed("a buffer's index");
    if (b->kind == WEIGHT && (b->nbytes[0] || b->offset < 0 || b->offset % ALIGN ||
                              b->nbytes[1] > (int64_t)m->weights_bytes ||
                              b->offset > (int64_t)m->weights_bytes - b->nbytes[1]))
      return malformed("weights that are not there");
  }
  for (buffer *b = m->buffer; b < m->buffer + m->buffers; b++)
    if (b->alias >= 0 && (m->buffer[b->alias].alias >= 0 || m->buffer[b->alias].kind != b->kind))
      return malformed("an alias");
  return INGOT_OK;
}

static int read_steps(reader *r) {
  ingot_model *m = r->model;
  uint8_t *written = block(m, m->states + m->outputs, 1);
  TRY(read_count(r, &m->steps));
  m->step = block(m, m->steps, sizeof *m->step);
  if (!m->step || !written) return out_of_memory();
  m->table_words = 4 * m->steps;
  for (int64_t number = 0; number < m->steps; number++) {
    step *s = m->step + number;
    TRY(read_between(r, 0, (int64_t)m->code_bytes - 1, "a kernel", &s->kernel));
    TRY(read_between(r, -1, m->steps, "a jump", &s->target));
    TRY(read_count(r, &s->arguments));
    if (s->target >= 0 && s->arguments > 1) return malformed("a jump");
    s->argument = block(m, s->arguments, sizeof *s->argument);
    if (!s->argument) return out_of_memory();
    for (argument *a = s->argument; a < s->argument + s->arguments; a++) {
      TRY(read_between(r, 0, m->buffers - 1, "a buffer", &a->buffer));
      TRY(read_expr(r, &a->offset));
      TRY(check_symbols_only(m, a->offset, "an offset"));
      const buffer *b = m->buffer + a->buffer, *root = b->alias < 0 ? b : m->buffer + b->alias;
      if (root->kind == ARENA && (root->first > number || root->last < number))
        return malformed("a buffer that is not alive");
      if (root->kind == OUTPUT && s->target < 0) written[root->index] = 1;
    }
    TRY(read_exprs(r, INT64_MAX, &s->dims, &s->dim));
    TRY(read_expr(r, &s->chunks));
    TRY(read_expr(r, &s->rounds));
    m->table_words += 2 * s->arguments + s->dims;
  }
  for (int64_t i = 0; i < m->states + m->outputs; i++) {
    const spec *s = result_spec(m, i);
    int is_empty = i < m->states && !m->copied[i];
    for (int k = 0; k < s->rank; k++) is_empty |= s->open[k] == 0;
    if (!written[i] && !is_empty) return malformed("an output that no step writes");
  }
  return INGOT_OK;
}

static int read_plan(ingot_model *m, int64_t *words, int64_t count) {
  reader r = {m, words, words + count, 0};
  int64_t *entries[] = {&m->run, &m->worker, &m->stop, &m->clock};
  TRY(read_machine(&r));
  TRY(read_between(&r, 0, ADDRESS_SPACE, "scratch", &m->scratch));
  for (int i = 0; i < 4; i++) TRY(read_between(&r, 0, (int64_t)m->code_bytes - 1, "a function", entries[i]));
  TRY(read_names(&r));
  TRY(read_specs(&r, &m->inputs, &m->input, 1));
  TRY(read_specs(&r, &m->outputs, &m->output, 0));
  TRY(read_state(&r));
  TRY(read_exprs(&r, INT64_MAX, &m->conditions, &m->condition));
  TRY(read_buffers(&r));
  TRY(read_steps(&r));
  if (r.next != r.end) return malformed("it does not end");
  for (int64_t i = 0, rows = m->inputs + m->states; i < rows; i++)
    for (int k = 0; k < argument_spec(m, i)->rank + argument_spec(m, i)->elements; k++)
      TRY(check_symbols_only(m, argument_spec(m, i)->dims[k], "an input's size"));
  return INGOT_OK;
}

/* ---- opening a file */

/* Words of a section that may lie anywhere. */
static int64_t word_at(const uint8_t *at) {
  int64_t value;
  memcpy(&value, at, 8);
  return value;
}

static int load_code(ingot_model *m, const uint8_t *code, size_t nbytes) {
  size_t mapped = (nbytes + PAGE - 1) / PAGE * PAGE;
  void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return out_of_memory();
  m->code = memory;
  m->code_bytes = nbytes;
  memcpy(memory, code, nbytes);
  __builtin___clear_cache((char *)memory, (char *)memory + nbytes);
  if (mprotect(memory, mapped, PROT_READ | PROT_EXEC)) return fail(INGOT_MEMORY, "no permission for executable memory");
  return INGOT_OK;
}

static int open_sections(ingot_model *m) {
  const uint8_t *file = m->file;
  const size_t nbytes = m->file_bytes;
  uint32_t version, header;
  uint64_t total, length;
  if (nbytes < PREFIX_BYTES || memcmp(file, "\x8eINGOT\r\n", 8)) return fail(INGOT_FORMAT, "not an Ingot artifact");
  memcpy(&version, file + 8, 4);
  memcpy(&header, file + 12, 4);
  memcpy(&total, file + 16, 8);
  memcpy(&length, file + 40, 8);
  if (version != VERSION)
    return fail(INGOT_FORMAT, "format version %u, not %d: save the model again", version, VERSION);
  if (total != nbytes || header > nbytes - PREFIX_BYTES) return fail(INGOT_CORRUPT, "the file is truncated");
  if (length == 0) return fail(INGOT_MACHINE, "the program needs a device other than the CPU");
  const uint8_t *section = file + PREFIX_BYTES + header;
  const size_t rest = nbytes - PREFIX_BYTES - header;
  if (length > rest || length < 128 || length % 8) return fail(INGOT_CORRUPT, "a section is not within the file");
  if (!has_digest(section, length, file + 48)) return fail(INGOT_CORRUPT, "the plan's digest is wrong");
  const uint8_t *body = section + length;
  const uint64_t room = rest - length;
  const int64_t code_at = word_at(section), code_bytes = word_at(section + 8);
  const int64_t state_at = word_at(section + 32), state_bytes = word_at(section + 40);
  const int64_t weights_bytes = word_at(section + 72), states = word_at(section + 96);
  if (code_at < 0 || state_at < 0 || code_bytes < 2 * DIGEST_BYTES + 1 || state_bytes < 0 || weights_bytes < 0 ||
      (uint64_t)code_at > room || (uint64_t)code_bytes > room - (uint64_t)code_at || (uint64_t)state_at > room ||
      (uint64_t)state_bytes > room - (uint64_t)state_at ||
      (uint64_t)weights_bytes > room || states < 0 || states > ((int64_t)length - 104) / 8)
    return fail(INGOT_CORRUPT, "a section is not within the file");
  const uint8_t *code = body + code_at, *state = body + state_at;
  const uint8_t *weights = file + nbytes - weights_bytes;
  uint8_t digest[DIGEST_BYTES];
  weights_digest(weights, (size_t)weights_bytes, digest);
  if (!has_digest(code, (size_t)code_bytes, section + 16)) return fail(INGOT_CORRUPT, "the code's digest is wrong");
  if (!has_digest(state, (size_t)state_bytes, section + 48)) return fail(INGOT_CORRUPT, "the state's digest is wrong");
  if (memcmp(digest, section + 80, DIGEST_BYTES)) return fail(INGOT_CORRUPT, "the weights' digest is wrong");
  const uint8_t *plan = section + 104 + 8 * states;
  const size_t plan_bytes = (size_t)(section + length - plan);
  uint8_t seal[DIGEST_BYTES];
  blake both;
  blake_begin(&both);
  blake_add(&both, plan, plan_bytes);
  blake_add(&both, digest, DIGEST_BYTES);
  blake_end(&both, seal);
  if (memcmp(code + DIGEST_BYTES, seal, DIGEST_BYTES))
    return fail(INGOT_PLAN, "plan or weights are not those that the code was compiled for");
  m->weights = weights;
  m->weights_bytes = (size_t)weights_bytes;
  if ((uintptr_t)weights % ALIGN && weights_bytes) {
    m->weights = m->weights_copy = aligned_alloc(ALIGN, (size_t)aligned(weights_bytes));
    if (!m->weights) return out_of_memory();
    memcpy(m->weights_copy, weights, (size_t)weights_bytes);
  }
  TRY(load_code(m, code + 2 * DIGEST_BYTES, (size_t)code_bytes - 2 * DIGEST_BYTES));
  m->first = state;
  m->stored = block(m, states, 8);
  m->words = block(m, (int64_t)plan_bytes / 8, 8);
  if (!m->stored || !m->words) return out_of_memory();
  memcpy(m->stored, section + 104, (size_t)(8 * states));
  memcpy(m->words, plan, plan_bytes);
  TRY(read_plan(m, m->words, (int64_t)plan_bytes / 8));
  if (states != m->states) return malformed("its state");
  int64_t left = state_bytes;
  for (int64_t i = 0; i < states; i++) {
    int64_t size = (int64_t)dtypes[m->state[i].dtype].itemsize;
    for (int k = 0; k < m->state[i].rank; k++)
      if (__builtin_mul_overflow(size, m->state[i].open[k], &size) || size >= ADDRESS_SPACE)
        return malformed("its state");
    if (m->stored[i] && m->stored[i] != size) return malformed("its state");
    left -= m->stored[i];
    if (left < 0) return malformed("its state");
  }
  return left ? malformed("its state") : INGOT_OK;
}

static int open_model(const void *data, size_t nbytes, int is_mapped, ingot_model **model) {
  ingot_model *m = calloc(1, sizeof *m);
  if (!m) {
    if (is_mapped) munmap((void *)(uintptr_t)data, nbytes);
    return out_of_memory();
  }
  m->file = data;
  m->file_bytes = nbytes;
  m->is_mapped = is_mapped;
  int code = open_sections(m);
  if (code == INGOT_OK)
    *model = m;
  else
    ingot_close(m);
  return code;
}

int ingot_open_memory(const void *data, size_t nbytes, ingot_model **model) {
  if (!data || !model) return fail(INGOT_ARGUMENT, "an argument is NULL");
  return open_model(data, nbytes, 0, model);
}

int ingot_open(const char *path, ingot_model **model) {
  struct stat status;
  if (!path || !model) return fail(INGOT_ARGUMENT, "an argument is NULL");
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return fail(INGOT_FILE, "cannot read %.128s: %.64s", path, strerror(errno));
  void *data = MAP_FAILED;
  size_t nbytes = 0;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    nbytes = (size_t)status.st_size;
    data = mmap(NULL, nbytes, PROT_READ, MAP_PRIVATE, file, 0);
  }
  close(file);
  if (data == MAP_FAILED) return fail(INGOT_FILE, "cannot map %.128s: not a file with content", path);
  return open_model(data, nbytes, 1, model);
}

void ingot_close(ingot_model *m) {
  if (!m) return;
  for (size_t i = 0; i < m->block_count; i++) free(m->blocks[i]);
  free(m->blocks);
  free(m->weights_copy);
  if (m->code) munmap(m->code, (m->code_bytes + PAGE - 1) / PAGE * PAGE);
  if (m->is_mapped) munmap((void *)(uintptr_t)m->file, m->file_bytes);
  free(m);
}

int ingot_input_count(const ingot_model *m) { return m ? (int)m->inputs : 0; }
int ingot_output_count(const ingot_model *m) { return m ? (int)m->outputs : 0; }
int ingot_state_count(const ingot_model *m) { return m ? (int)m->states : 0; }

static int shown(const spec *specs, int64_t count, int index, ingot_spec *to) {
  if (!to || index < 0 || index >= count) return fail(INGOT_ARGUMENT, "there is no such tensor");
  const spec *s = specs + index;
  to->name = s->name;
  to->dtype = dtypes[s->dtype].name;
  to->itemsize = dtypes[s->dtype].itemsize;
  to->dims = s->open;
  to->rank = s->rank;
  return INGOT_OK;
}

int ingot_input(const ingot_model *m, int index, ingot_spec *to) {
  return shown(m ? m->input : NULL, ingot_input_count(m), index, to);
}
int ingot_output(const ingot_model *m, int index, ingot_spec *to) {
  return shown(m ? m->output : NULL, ingot_output_count(m), index, to);
}
int ingot_state(const ingot_model *m, int index, ingot_spec *to) {
  return shown(m ? m->state : NULL, ingot_state_count(m), index, to);
}

/* ---- a session */

typedef int64_t run_function(void *);
typedef void worker_function(void *);
typedef int64_t clock_function(void);

enum { POOL_BYTES = 640, THREAD_BYTES = 128 }; /* see targets/cpu/driver.py */

struct ingot_session {
  const ingot_model *model;
  int threads, started, has_bound;
  pthread_t *thread;
  int64_t *pool; /* NULL for one thread */
  uint8_t *arena, *scratch, *kept;
  size_t arena_bytes, scratch_bytes, kept_bytes, stride;
  uint8_t **read, **written; /* of each state */
  int64_t *passed;           /* dims and elements of the arguments, as bound */
  int64_t passed_count;
  int64_t *told; /* of this call */
  int64_t *values, *sizes, *actual;
  span *spans;
  int64_t **shape; /* of each output: the largest, then that of the last run */
  int64_t *output_bytes;
  void **own;
  size_t *own_bytes;
  int64_t *table, *offsets, *geometry, *bases;
  int64_t context[17];
};

static void *function_at(const ingot_model *m, int64_t offset) { return m->code + offset; }

static int64_t ticks(const ingot_model *m) {
  clock_function *clock;
  void *at = function_at(m, m->clock);
  memcpy(&clock, &at, sizeof at);
  return clock();
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double ticks_per_second(const ingot_model *m) {
  double start = seconds(), now = start;
  int64_t first = ticks(m);
  while (now - start < 3e-4) now = seconds();
  return (double)(ticks(m) - first) / (now - start);
}

/* Zeroed memory of pages. */
static int mapped(size_t nbytes, uint8_t **memory) {
  void *at = mmap(NULL, nbytes ? nbytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return fail(INGOT_MEMORY, "out of memory: %zu bytes", nbytes);
  if (nbytes >= (size_t)2 << 20) madvise(at, nbytes, MADV_HUGEPAGE);
  *memory = at;
  return INGOT_OK;
}

static void unmapped(uint8_t *memory, size_t nbytes) {
  if (memory) munmap(memory, nbytes ? nbytes : 1);
}

typedef struct {
  worker_function *run;
  void *pool;
} work;

static void *worked(void *given) {
  work own = *(work *)given;
  free(given);
  own.run(own.pool);
  return NULL;
}

static int start_threads(ingot_session *s) {
  const ingot_model *m = s->model;
  if (s->threads == 1) return INGOT_OK;
  size_t nbytes = POOL_BYTES + (size_t)THREAD_BYTES * (size_t)s->threads;
  s->pool = aligned_alloc(128, (nbytes + 127) / 128 * 128);
  s->thread = calloc((size_t)s->threads, sizeof *s->thread);
  if (!s->pool || !s->thread) return out_of_memory();
  memset(s->pool, 0, (nbytes + 127) / 128 * 128);
  struct timespec tick = {0, 0};
  clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
  double rate = ticks_per_second(m), turn = (double)tick.tv_sec + 1e-9 * (double)tick.tv_nsec;
  long (*call)(long, ...) = syscall;
  s->pool[0] = INT64_MIN;
  memcpy(s->pool + 512 / 8, &call, 8);
  s->pool[520 / 8] = (int64_t)(50e-6 * rate);
  s->pool[544 / 8] = s->threads;
  s->pool[552 / 8] = (int64_t)((turn > 3e-3 ? turn : 3e-3) / 2 * rate);
  void *at = function_at(m, m->worker);
  for (s->started = 0; s->started < s->threads - 1; s->started++) {
    work *given = malloc(sizeof *given);
    if (!given) break; /* fewer threads do the same work */
    memcpy(&given->run, &at, sizeof at);
    given->pool = s->pool;
    if (pthread_create(s->thread + s->started, NULL, worked, given)) {
      free(given);
      break;
    }
  }
  return INGOT_OK;
}

static int64_t state_bytes(const ingot_model *m, int64_t i) {
  int64_t size = (int64_t)dtypes[m->state[i].dtype].itemsize;
  for (int k = 0; k < m->state[i].rank; k++) size *= m->state[i].open[k]; /* checked when it was opened */
  return size;
}

static int start_state(ingot_session *s) {
  const ingot_model *m = s->model;
  int64_t total = 0;
  for (int64_t i = 0; i < m->states; i++) /* each is below ADDRESS_SPACE */
    if ((total += aligned(state_bytes(m, i)) * (1 + m->copied[i])) >= ADDRESS_SPACE)
      return fail(INGOT_MEMORY, "out of memory: state");
  TRY(mapped((size_t)total, &s->kept));
  s->kept_bytes = (size_t)total;
  uint8_t *at = s->kept;
  const uint8_t *first = m->first;
  for (int64_t i = 0; i < m->states; i++) {
    s->read[i] = s->written[i] = at;
    at += aligned(state_bytes(m, i));
    if (m->copied[i]) {
      s->written[i] = at;
      at += aligned(state_bytes(m, i));
    }
    memcpy(s->read[i], first, (size_t)m->stored[i]);
    first += m->stored[i];
  }
  return INGOT_OK;
}

static int fill_session(ingot_session *s) {
  const ingot_model *m = s->model;
  size_t names = (size_t)(m->symbols + m->sizes) + 1, outputs = (size_t)m->outputs + 1, states = (size_t)m->states + 1;
  for (int64_t i = 0; i < m->inputs + m->states; i++)
    s->passed_count += argument_spec(m, i)->rank + argument_spec(m, i)->elements;
  size_t passed = (size_t)s->passed_count + 1;
  s->passed = calloc(passed, 8);
  s->told = calloc(passed, 8);
  s->values = calloc(names, 8);
  s->actual = calloc(names, 8);
  s->spans = calloc(names, sizeof *s->spans);
  s->sizes = calloc(names, 8);
  s->shape = calloc(outputs, sizeof *s->shape);
  s->output_bytes = calloc(outputs, 8);
  s->own = calloc(outputs, sizeof *s->own);
  s->own_bytes = calloc(outputs, sizeof *s->own_bytes);
  s->read = calloc(states, sizeof *s->read);
  s->written = calloc(states, sizeof *s->written);
  s->table = calloc((size_t)m->table_words + 1, 8);
  s->offsets = calloc((size_t)m->buffers + 1, 8);
  s->bases = calloc((size_t)(4 + m->inputs + m->outputs + 2 * m->states), 8);
  if (!s->passed || !s->told || !s->values || !s->actual || !s->spans || !s->sizes || !s->shape || !s->output_bytes ||
      !s->own || !s->own_bytes || !s->read || !s->written || !s->table || !s->offsets || !s->bases)
    return out_of_memory();
  for (int64_t i = 0; i < m->outputs; i++)
    if (!(s->shape[i] = calloc(2 * (size_t)m->output[i].rank + 1, 8))) return out_of_memory();
  s->stride = (size_t)aligned(m->scratch) + ALIGN;
  s->scratch_bytes = s->stride * (size_t)s->threads;
  TRY(mapped(s->scratch_bytes, &s->scratch));
  TRY(start_state(s));
  return start_threads(s);
}

int ingot_session_open(const ingot_model *model, int threads, ingot_session **session) {
  if (!model || !session || threads < 1 || threads > 1024) return fail(INGOT_ARGUMENT, "1 to 1024 threads, a model");
  ingot_session *s = calloc(1, sizeof *s);
  if (!s) return out_of_memory();
  s->model = model;
  s->threads = threads;
  int code = fill_session(s);
  if (code == INGOT_OK)
    *session = s;
  else
    ingot_session_close(s);
  return code;
}

void ingot_session_close(ingot_session *s) {
  if (!s) return;
  if (s->started) {
    worker_function *stop;
    void *at = function_at(s->model, s->model->stop);
    memcpy(&stop, &at, sizeof at);
    stop(s->pool);
    for (int i = 0; i < s->started; i++) pthread_join(s->thread[i], NULL);
  }
  for (int64_t i = 0; s->shape && i < s->model->outputs; i++) free(s->shape[i]);
  for (int64_t i = 0; s->own && i < s->model->outputs; i++) free(s->own[i]);
  unmapped(s->arena, s->arena_bytes);
  unmapped(s->scratch, s->scratch_bytes);
  unmapped(s->kept, s->kept_bytes);
  void *freed[] = {s->passed, s->told, s->values, s->actual, s->spans, s->sizes, s->shape, s->output_bytes, s->own,
                   s->own_bytes, s->read, s->written, s->table, s->offsets, s->bases, s->pool, s->thread, s};
  for (size_t i = 0; i < sizeof freed / sizeof *freed; i++) free(freed[i]);
}

/* ---- binding: sizes, offsets and tables for the shapes of a call */

/* The row of an argument's dims, or of an input's elements, in `told`; its length. */
static const int64_t *row_of(const ingot_session *s, int64_t row, int64_t *count) {
  const ingot_model *m = s->model;
  const int64_t *at = s->told;
  for (int64_t i = 0; i < m->inputs + m->states; i++, row--) {
    *count = argument_spec(m, i)->rank;
    if (row == 0) return at;
    at += *count;
  }
  for (int64_t i = 0; i < m->inputs; i++) {
    *count = m->input[i].elements;
    if (!*count) continue;
    if (row == 0) return at;
    at += *count;
    row--;
  }
  return NULL;
}

static int bind_symbols(ingot_session *s) {
  const ingot_model *m = s->model;
  for (int64_t i = 0; i < m->symbols; i++) {
    const named *symbol = m->symbol + i;
    int64_t count = 0, rest, difference;
    const int64_t *row = symbol->row < 0 ? NULL : row_of(s, symbol->row, &count);
    if (!row || symbol->position < 0 || symbol->position >= count)
      return malformed("a symbol that no input determines");
    if (__builtin_sub_overflow(row[symbol->position], symbol->start, &difference) ||
        floored(difference, symbol->slope, s->values + i, &rest))
      return fail(INGOT_SHAPE, "%.64s is out of range", symbol->name);
    int64_t value = s->values[i];
    if ((symbol->has_lo && value < symbol->lo) || (symbol->has_hi && value > symbol->hi))
      return fail(INGOT_SHAPE, "%.64s = %lld is out of range", symbol->name, (long long)value);
  }
  const int64_t *at = s->told;
  for (int pass = 0; pass < 2; pass++) {
    for (int64_t i = 0; i < (pass ? m->inputs : m->inputs + m->states); i++) {
      const spec *a = argument_spec(m, i);
      for (int k = pass ? a->rank : 0; k < (pass ? a->rank + a->elements : a->rank); k++, at++) {
        int64_t declared;
        TRY(evaluated(a->dims[k], s->values, &declared));
        if (declared != *at)
          return fail(INGOT_SHAPE, "%.64s, %s %d: expected %lld, got %lld", a->name, pass ? "element" : "axis",
                      pass ? k - a->rank : k, (long long)declared, (long long)*at);
      }
    }
  }
  for (int64_t i = 0; i < m->conditions; i++) {
    int64_t value;
    if (is_computed(m, m->condition[i])) continue;
    TRY(evaluated(m->condition[i], s->values, &value));
    if (value < 0) return fail(INGOT_SHAPE, "the model does not support these sizes");
  }
  for (int64_t i = 0; i < m->symbols; i++) s->spans[i].lo = s->spans[i].hi = s->values[i];
  for (int64_t i = 0; i < m->sizes; i++) {
    span bound, *own = s->spans + m->symbols + i;
    TRY(spanned(m->size[i].bound, s->spans, &bound));
    int64_t upper = m->size[i].base.has_hi && m->size[i].base.hi < bound.hi ? m->size[i].base.hi : bound.hi;
    own->lo = m->size[i].base.lo < 0 ? m->size[i].base.lo : 0;
    own->hi = upper > 0 ? upper : 0;
  }
  return INGOT_OK;
}

/* The bytes of a tensor of these dims; -1 where a run computes one of them. */
static int tensor_bytes(const ingot_session *s, const spec *t, int64_t *nbytes) {
  *nbytes = (int64_t)dtypes[t->dtype].itemsize;
  for (int k = 0; k < t->rank; k++) {
    int64_t dim;
    if (is_computed(s->model, t->dims[k])) {
      *nbytes = -1;
      return INGOT_OK;
    }
    TRY(evaluated(t->dims[k], s->values, &dim));
    if (__builtin_mul_overflow(*nbytes, dim, nbytes)) return fail(INGOT_SHAPE, "%.64s is too large", t->name);
  }
  return INGOT_OK;
}

/* `program.check_extents`: each buffer is within its memory, each argument within its buffer. */
static int check_extents(const ingot_session *s) {
  const ingot_model *m = s->model;
  for (const buffer *b = m->buffer; b < m->buffer + m->buffers; b++) {
    int64_t nbytes, capacity = -1, offset = 0;
    if (is_computed(m, b->nbytes)) continue;
    TRY(evaluated(b->nbytes, s->values, &nbytes));
    if (b->alias >= 0) {
      TRY(evaluated(b->alias_at, s->values, &offset));
      if (is_computed(m, m->buffer[b->alias].nbytes)) continue;
      TRY(evaluated(m->buffer[b->alias].nbytes, s->values, &capacity));
      if (capacity < 0) capacity = 0;
    } else if (b->kind == INPUT || b->kind == OUTPUT) {
      TRY(tensor_bytes(s, b->kind == INPUT ? argument_spec(m, b->index) : result_spec(m, b->index), &capacity));
      if (capacity < 0) continue;
    } else if (b->kind == SIZE) {
      capacity = 8 * (m->sizes - b->index);
    } else if (b->kind == TABLE) {
      capacity = 8 * m->table_words;
    } else {
      continue;
    }
    if (offset < 0 || nbytes > capacity || offset > capacity - nbytes) return malformed("a buffer beyond its memory");
  }
  for (const step *t = m->step; t < m->step + m->steps; t++)
    for (const argument *a = t->argument; a < t->argument + t->arguments; a++) {
      int64_t nbytes, offset;
      TRY(evaluated(a->offset, s->values, &offset));
      if (is_computed(m, m->buffer[a->buffer].nbytes)) continue;
      TRY(evaluated(m->buffer[a->buffer].nbytes, s->values, &nbytes));
      if (offset < 0 || offset > nbytes - (t->target >= 0)) return malformed("an offset beyond its buffer");
    }
  return INGOT_OK;
}

typedef struct {
  int64_t nbytes, first, last, index, offset;
} request;

static int is_larger(const void *a, const void *b) {
  const request *x = a, *y = b;
  if (x->nbytes != y->nbytes) return x->nbytes > y->nbytes ? -1 : 1;
  if (x->first != y->first) return x->first < y->first ? -1 : 1;
  return x->index < y->index ? -1 : x->index > y->index;
}

/* `placement.place`: offsets such that requests that are alive together do not overlap. Returns the bytes of all. */
static int64_t placed(request *requests, int64_t count, request **order) {
  int64_t total = 0, done = 0;
  qsort(requests, (size_t)count, sizeof *requests, is_larger);
  for (int64_t i = 0; i < count; i++) {
    request *r = requests + i;
    int64_t size = aligned(r->nbytes), end = 0, best = -1, gap = INT64_MAX, place = 0;
    r->offset = 0;
    if (!size) continue;
    for (int64_t k = 0; k < done; k++) { /* in the order of their offsets */
      const request *other = order[k];
      if (other->first > r->last || other->last < r->first) continue;
      int64_t room = other->offset - end;
      if (room >= size && room < gap) {
        best = end;
        gap = room;
      }
      int64_t other_end = other->offset + aligned(other->nbytes);
      if (other_end > end) end = other_end;
    }
    r->offset = best >= 0 ? best : end;
    while (place < done && order[place]->offset < r->offset) place++;
    memmove(order + place + 1, order + place, (size_t)(done - place) * sizeof *order);
    order[place] = r;
    done++;
    if (r->offset + size > total) total = r->offset + size;
  }
  return total;
}

/* Place the arena's buffers: those without a halo first, then those of each geometry, whose bytes are its fill. */
static int place_arena(ingot_session *s) {
  const ingot_model *m = s->model;
  int64_t end = 0, total = 0, left = 0, count, halo, fill, nbytes;
  struct {
    int64_t at, nbytes, fill;
  } *fills = calloc((size_t)m->buffers + 1, sizeof *fills);
  request *requests = calloc((size_t)m->buffers + 1, sizeof *requests);
  request **order = calloc((size_t)m->buffers + 1, sizeof *order);
  uint8_t *waits = calloc((size_t)m->buffers + 1, 1);
  int64_t *sizes = calloc((size_t)m->buffers + 1, 8), groups = 0;
  int code = fills && requests && order && waits && sizes ? INGOT_OK : out_of_memory();
  for (int64_t i = 0; code == INGOT_OK && i < m->buffers; i++) {
    span bytes;
    if (m->buffer[i].kind != ARENA || m->buffer[i].alias >= 0) continue;
    code = spanned(m->buffer[i].nbytes, s->spans, &bytes);
    if (code != INGOT_OK) break;
    sizes[i] = bytes.hi > 0 ? bytes.hi : 0;
    if (sizes[i] >= ADDRESS_SPACE || (total += sizes[i] + ALIGN) >= ADDRESS_SPACE) code = out_of_memory();
    waits[i] = 1;
    left++;
  }
  for (int is_first = 1; code == INGOT_OK && (left || is_first); is_first = 0) {
    halo = fill = nbytes = -1;
    count = 0;
    for (int64_t i = 0; i < m->buffers; i++) {
      const buffer *b = m->buffer + i;
      if (!waits[i] || (is_first && b->halo >= 0)) continue;
      if (!is_first && halo < 0) {
        halo = b->halo;
        fill = b->fill;
        nbytes = sizes[i];
      }
      if (!is_first && (b->halo != halo || b->fill != fill || sizes[i] != nbytes)) continue;
      request r = {sizes[i], b->first, b->last, i, 0};
      requests[count++] = r;
      waits[i] = 0;
      left--;
    }
    int64_t size = placed(requests, count, order);
    for (int64_t i = 0; i < count; i++) s->offsets[requests[i].index] = end + requests[i].offset;
    if (!is_first) {
      fills[groups].at = end;
      fills[groups].nbytes = size;
      fills[groups++].fill = fill;
    }
    end += size;
  }
  if (code == INGOT_OK && (size_t)end > s->arena_bytes) {
    unmapped(s->arena, s->arena_bytes);
    s->arena = NULL;
    s->arena_bytes = 0;
    code = mapped((size_t)end, &s->arena);
    if (code == INGOT_OK) s->arena_bytes = (size_t)end;
  }
  for (int64_t i = 0; code == INGOT_OK && i < groups; i++)
    memset(s->arena + fills[i].at, (int)fills[i].fill, (size_t)fills[i].nbytes);
  free(fills);
  free(requests);
  free(order);
  free(waits);
  free(sizes);
  return code;
}

/* Where a buffer is: the index of its base, and the offset from there. */
static int located(const ingot_session *s, const buffer *b, int64_t *base, int64_t *offset) {
  const ingot_model *m = s->model;
  const buffer *root = b->alias < 0 ? b : m->buffer + b->alias;
  const int64_t outputs = 2 + m->inputs + m->states, sizes = outputs + m->states + m->outputs;
  const int64_t bases[KINDS] = {0, 1, 2, outputs, sizes, sizes + 1};
  *base = bases[root->kind] + (root->kind == INPUT || root->kind == OUTPUT ? root->index : 0);
  *offset = root->kind == ARENA ? s->offsets[root - m->buffer]
            : root->kind == WEIGHT ? root->offset
            : root->kind == SIZE ? 8 * root->index
                                 : 0;
  if (b->alias >= 0) {
    int64_t at;
    TRY(evaluated(b->alias_at, s->values, &at));
    *offset += at; /* within the root: `check_extents` */
  }
  return INGOT_OK;
}

static int fill_table(ingot_session *s) {
  const ingot_model *m = s->model;
  int64_t *at = s->table + 4 * m->steps;
  for (int64_t i = 0; i < m->steps; i++) {
    const step *t = m->step + i;
    int64_t *record = s->table + 4 * i;
    span chunks, rounds, dim;
    record[1] = (int64_t)(intptr_t)at;
    for (const argument *a = t->argument; a < t->argument + t->arguments; a++, at += 2) {
      int64_t offset;
      TRY(located(s, m->buffer + a->buffer, at, at + 1));
      TRY(evaluated(a->offset, s->values, &offset));
      if (__builtin_add_overflow(at[1], offset, at + 1)) return malformed("an offset");
    }
    for (int64_t k = 0; k < t->dims; k++) {
      TRY(spanned(t->dim[k], s->spans, &dim));
      *at++ = dim.hi;
    }
    if (t->target >= 0) {
      record[0] = 0;
      record[2] = t->target;
      record[3] = t->arguments ? -1 : -2;
      continue;
    }
    TRY(spanned(t->chunks, s->spans, &chunks));
    TRY(spanned(t->rounds, s->spans, &rounds));
    if (rounds.hi < 0) rounds.hi = 0;
    int64_t all;
    if (chunks.hi < 0 || chunks.hi >= MAX_CHUNKS || __builtin_mul_overflow(chunks.hi, rounds.hi, &all) ||
        all >= MAX_TOTAL_CHUNKS)
      return fail(INGOT_SHAPE, "a step of too many chunks");
    record[0] = (int64_t)(intptr_t)function_at(m, t->kernel);
    record[2] = chunks.hi;
    record[3] = rounds.hi;
  }
  return INGOT_OK;
}

static int bind_outputs(ingot_session *s) {
  const ingot_model *m = s->model;
  for (int64_t i = 0; i < m->outputs; i++) {
    int64_t nbytes = (int64_t)dtypes[m->output[i].dtype].itemsize, is_empty = 0;
    for (int k = 0; k < m->output[i].rank; k++) {
      span dim;
      TRY(spanned(m->output[i].dims[k], s->spans, &dim));
      if (dim.hi < 0) return fail(INGOT_SHAPE, "the inputs are too small");
      s->shape[i][k] = dim.hi;
      is_empty |= dim.hi == 0;
      if (__builtin_mul_overflow(nbytes, dim.hi ? dim.hi : 1, &nbytes) || nbytes >= ADDRESS_SPACE)
        return out_of_memory();
    }
    s->output_bytes[i] = is_empty ? 0 : nbytes;
  }
  return INGOT_OK;
}

static int64_t element(const uint8_t *at, int dtype, int64_t index) {
  const char *name = dtypes[dtype].name;
  const size_t size = dtypes[dtype].itemsize;
  int64_t value = 0;
  memcpy(&value, at + (size_t)index * size, size);
  if (name[0] == 'i' && size < 8) {
    int unused = (int)(64 - 8 * size);
    value = (int64_t)((uint64_t)value << unused) >> unused;
  }
  return value;
}

/* Check the inputs, and bind their shapes unless the last call had the same. */
static int bind(ingot_session *s, const ingot_tensor *inputs) {
  const ingot_model *m = s->model;
  int64_t *at = s->told;
  for (int64_t i = 0; i < m->inputs; i++) {
    const ingot_tensor *x = inputs + i;
    int64_t nbytes = (int64_t)dtypes[m->input[i].dtype].itemsize;
    if (x->rank != m->input[i].rank || (x->rank && !x->dims))
      return fail(INGOT_SHAPE, "%.64s: expected %d dims, got %d", m->input[i].name, m->input[i].rank, x->rank);
    int is_empty = 0;
    for (int k = 0; k < x->rank; k++) is_empty |= x->dims[k] == 0;
    for (int k = 0; k < x->rank; k++) {
      if (x->dims[k] < 0 || x->dims[k] > MAX_SIZE || __builtin_mul_overflow(nbytes, is_empty ? 0 : x->dims[k], &nbytes))
        return fail(INGOT_SHAPE, "%.64s: a size is out of range", m->input[i].name);
      *at++ = x->dims[k];
    }
    if ((uint64_t)nbytes != x->nbytes || (nbytes && !x->data))
      return fail(INGOT_ARGUMENT, "%.64s: expected %lld bytes, got %zu", m->input[i].name, (long long)nbytes,
                  x->nbytes);
  }
  for (int64_t i = 0; i < m->states; i++)
    for (int k = 0; k < m->state[i].rank; k++) *at++ = m->state[i].open[k];
  for (int64_t i = 0; i < m->inputs; i++)
    for (int k = 0; k < m->input[i].elements; k++) {
      if ((uint64_t)m->input[i].elements * dtypes[m->input[i].dtype].itemsize != inputs[i].nbytes)
        return fail(INGOT_SHAPE, "%.64s: expected %d elements", m->input[i].name, m->input[i].elements);
      *at++ = element(inputs[i].data, m->input[i].dtype, k);
    }
  if (s->has_bound && !memcmp(s->passed, s->told, (size_t)s->passed_count * 8)) return INGOT_OK;
  s->has_bound = 0;
  TRY(bind_symbols(s));
  TRY(check_extents(s));
  TRY(bind_outputs(s));
  TRY(place_arena(s));
  TRY(fill_table(s));
  memcpy(s->passed, s->told, (size_t)s->passed_count * 8);
  s->has_bound = 1;
  return INGOT_OK;
}

int ingot_output_bytes(ingot_session *s, const ingot_tensor *inputs, int index, size_t *nbytes) {
  if (!s || !nbytes || (!inputs && s->model->inputs) || index < 0 || index >= s->model->outputs)
    return fail(INGOT_ARGUMENT, "there is no such output");
  TRY(bind(s, inputs));
  *nbytes = (size_t)s->output_bytes[index];
  return INGOT_OK;
}

/* ---- running */

/* The sizes that the run computed: checked, in `actual` behind the symbols. */
static int read_sizes(ingot_session *s) {
  const ingot_model *m = s->model;
  memcpy(s->actual, s->values, (size_t)m->symbols * 8);
  span *spans = s->spans;
  int code = INGOT_OK;
  for (int64_t i = 0; i < m->sizes; i++) {
    const size_entry *size = m->size + i;
    int64_t value = s->sizes[i], upper;
    s->actual[m->symbols + i] = UNSET;
    if (value == UNSET) continue; /* in a branch that was not taken */
    int depends = 0;
    for (int64_t k = 0; k < size->bound[0]; k++)
      depends |= size->bound[1 + 2 * k] == NAME && s->actual[size->bound[2 + 2 * k]] == UNSET;
    span bound = {0, spans[m->symbols + i].hi};
    if (!depends && evaluated(size->bound, s->actual, &upper) == INGOT_OK) bound.hi = upper;
    if (size->base.has_hi && size->base.hi < bound.hi) bound.hi = size->base.hi;
    if (value < size->base.lo || value > bound.hi) {
      code = fail(INGOT_DATA, "size %.64s: expected %lld to %lld, got %lld", size->base.name, (long long)size->base.lo,
                  (long long)bound.hi, (long long)value);
      break;
    }
    s->actual[m->symbols + i] = value;
  }
  for (int64_t i = 0; code == INGOT_OK && i < m->conditions; i++) {
    int64_t value, known = is_computed(m, m->condition[i]);
    for (int64_t k = 0; k < m->condition[i][0]; k++)
      known &= m->condition[i][1 + 2 * k] != NAME || s->actual[m->condition[i][2 + 2 * k]] != UNSET;
    if (!known) continue;
    code = evaluated(m->condition[i], s->actual, &value);
    if (code == INGOT_OK && value < 0) code = fail(INGOT_DATA, "sizes that the data determines do not fit");
  }
  return code;
}

static int take_outputs(ingot_session *s, const ingot_tensor *outputs, int64_t *bases) {
  const ingot_model *m = s->model;
  for (int64_t i = 0; i < m->outputs; i++) {
    size_t nbytes = (size_t)s->output_bytes[i];
    if (outputs[i].data && outputs[i].nbytes < nbytes)
      return fail(INGOT_ARGUMENT, "%.64s needs %zu bytes, and has %zu", m->output[i].name, nbytes, outputs[i].nbytes);
    if (!outputs[i].data && nbytes + 1 > s->own_bytes[i]) {
      void *more = aligned_alloc(ALIGN, (size_t)aligned((int64_t)nbytes + 1));
      if (!more) return out_of_memory();
      free(s->own[i]);
      s->own[i] = more;
      s->own_bytes[i] = (size_t)aligned((int64_t)nbytes + 1);
    }
    bases[i] = (int64_t)(intptr_t)(outputs[i].data ? outputs[i].data : s->own[i]);
  }
  return INGOT_OK;
}

int ingot_run(ingot_session *s, const ingot_tensor *inputs, ingot_tensor *outputs) {
  if (!s || (!inputs && s->model->inputs) || (!outputs && s->model->outputs))
    return fail(INGOT_ARGUMENT, "an argument is NULL");
  const ingot_model *m = s->model;
  int64_t *base = s->bases + 2;
  TRY(bind(s, inputs));
  TRY(take_outputs(s, outputs, base + m->inputs + 2 * m->states));
  for (int64_t i = 0; i < m->inputs; i++) *base++ = (int64_t)(intptr_t)inputs[i].data;
  for (int64_t i = 0; i < m->states; i++) *base++ = (int64_t)(intptr_t)s->read[i];
  for (int64_t i = 0; i < m->states; i++) *base++ = (int64_t)(intptr_t)s->written[i];
  base += m->outputs;
  s->bases[0] = (int64_t)(intptr_t)s->arena;
  s->bases[1] = (int64_t)(intptr_t)m->weights;
  base[0] = (int64_t)(intptr_t)s->sizes;
  base[1] = (int64_t)(intptr_t)s->table;
  for (int64_t i = 0; i < m->sizes; i++) s->sizes[i] = UNSET;
  s->context[0] = s->started ? (int64_t)(intptr_t)s->pool : 0;
  s->context[1] = (int64_t)(intptr_t)s->bases;
  s->context[2] = (int64_t)(intptr_t)s->table;
  s->context[3] = m->steps;
  s->context[4] = (int64_t)(intptr_t)s->scratch;
  s->context[5] = (int64_t)s->stride;
  s->context[9] = (int64_t)1 << 62; /* a slice: no signal has to be looked after */
  run_function *run;
  void *at = function_at(m, m->run);
  memcpy(&run, &at, sizeof at);
  while (run(s->context)) {
  }
  TRY(read_sizes(s));
  for (int64_t i = 0; i < m->states; i++) {
    uint8_t *old = s->read[i];
    s->read[i] = s->written[i];
    s->written[i] = old;
  }
  for (int64_t i = 0; i < m->outputs; i++) {
    const spec *o = m->output + i;
    int64_t *largest = s->shape[i], *actual = largest + o->rank;
    size_t nbytes = dtypes[o->dtype].itemsize;
    for (int k = 0; k < o->rank; k++) {
      TRY(evaluated(o->dims[k], s->actual, actual + k));
      if (actual[k] < 0 || actual[k] > largest[k]) return fail(INGOT_DATA, "%.64s: a size is out of range", o->name);
      nbytes *= (size_t)actual[k];
    }
    if (!outputs[i].data) outputs[i].data = s->own[i];
    outputs[i].nbytes = nbytes;
    outputs[i].dims = actual;
    outputs[i].rank = o->rank;
  }
  return INGOT_OK;
}

int ingot_state_read(const ingot_session *s, int index, void *to, size_t nbytes) {
  if (!s || !to || index < 0 || index >= s->model->states || nbytes != (size_t)state_bytes(s->model, index))
    return fail(INGOT_ARGUMENT, "there is no such state, or it has another size");
  memcpy(to, s->read[index], nbytes);
  return INGOT_OK;
}

int ingot_state_write(ingot_session *s, int index, const void *from, size_t nbytes) {
  if (!s || !from || index < 0 || index >= s->model->states || nbytes != (size_t)state_bytes(s->model, index))
    return fail(INGOT_ARGUMENT, "there is no such state, or it has another size");
  memcpy(s->read[index], from, nbytes);
  return INGOT_OK;
}

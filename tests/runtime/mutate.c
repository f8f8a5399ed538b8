/* Opens, binds and runs artifacts whose plan, state or weights were changed and whose digests are right again.
 *
 * mutate FILE INPUTS SEED COUNT: prints how many artifacts were refused, bound and run. INPUTS: for each input its rank
 * and dims, then its bytes. Built with sanitizers: a wild access ends it. */
#include "libingot.c"

static uint64_t random_state;

static uint64_t next_random(void) { /* xorshift64* */
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return random_state * 0x2545F4914F6CDD1D;
}

static uint8_t *content(const char *path, size_t *nbytes) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(9);
  fseek(file, 0, SEEK_END);
  *nbytes = (size_t)ftell(file);
  rewind(file);
  uint8_t *data = malloc(*nbytes + 1);
  if (!data || fread(data, 1, *nbytes, file) != *nbytes) exit(9);
  fclose(file);
  return data;
}

/* Make all digests right. seal: also that of the plan and the weights that the code carries. */
static void resealed(uint8_t *file, size_t nbytes, int seal) {
  uint32_t header;
  uint64_t length;
  memcpy(&header, file + 12, 4);
  memcpy(&length, file + 40, 8);
  uint8_t *section = file + PREFIX_BYTES + header, *body = section + length;
  uint8_t *code = body + word_at(section);
  weights_digest(file + nbytes - word_at(section + 72), (size_t)word_at(section + 72), section + 80);
  if (seal) {
    size_t start = 104 + 8 * (size_t)word_at(section + 96);
    blake both;
    blake_begin(&both);
    blake_add(&both, section + start, length - start);
    blake_add(&both, section + 80, DIGEST_BYTES);
    blake_end(&both, code + DIGEST_BYTES);
  }
  digest_of(code, (size_t)word_at(section + 8), section + 16);
  digest_of(body + word_at(section + 32), (size_t)word_at(section + 40), section + 48);
  digest_of(section, length, file + 48);
}

static const int64_t odd[] = {0, 1, -1, 2, 7, 8, 63, 64, 65, 255, 4096, INT32_MAX, INT64_MAX, INT64_MIN, (int64_t)1 << 40};

static void changed(int64_t *word, int64_t other) {
  switch (next_random() % 6) {
    case 0: *word = odd[next_random() % (sizeof odd / sizeof *odd)]; break;
    case 1: *word += (int64_t)(next_random() % 9) - 4; break;
    case 2: *word ^= (int64_t)1 << next_random() % 63; break;
    case 3: *word = (int64_t)next_random(); break;
    case 4: *word = other; break;
    default: *word = (int64_t)(next_random() % 64); break;
  }
}

int main(int count, char **words) {
  if (count != 5) return 9;
  size_t nbytes, input_bytes;
  uint8_t *original = content(words[1], &nbytes), *given = content(words[2], &input_bytes);
  random_state = strtoull(words[3], NULL, 10) * 2654435761u + 88172645463325252u;
  long turns = atol(words[4]), refused = 0, bound = 0, ran = 0;
  uint32_t header;
  uint64_t length;
  memcpy(&header, original + 12, 4);
  memcpy(&length, original + 40, 8);
  uint8_t *file = aligned_alloc(PAGE, (nbytes + PAGE - 1) / PAGE * PAGE);
  ingot_tensor inputs[16] = {{0}}, outputs[64];
  int64_t dims[16][8];
  size_t at = 0;
  for (int i = 0; at < input_bytes && i < 16; i++) {
    int64_t rank, size;
    memcpy(&rank, given + at, 8);
    memcpy(dims[i], given + at + 8, (size_t)rank * 8);
    memcpy(&size, given + at + 8 + rank * 8, 8);
    at += 16 + (size_t)rank * 8;
    inputs[i].data = malloc((size_t)size + 1);
    memcpy(inputs[i].data, given + at, (size_t)size);
    at += (size_t)size;
    inputs[i].nbytes = (size_t)size;
    inputs[i].dims = dims[i];
    inputs[i].rank = (int)rank;
  }
  for (long turn = -1; turn < turns; turn++) { /* the first as it is: it must run */
    memcpy(file, original, nbytes);
    uint8_t *section = file + PREFIX_BYTES + header;
    int64_t states = word_at(section + 96), weights_bytes = word_at(section + 72), n = ((int64_t)length - 104) / 8;
    int what = turn < 0 ? -1 : (int)(next_random() % 8);
    if (what == 0 && weights_bytes) {
      for (int k = 0; k < 16; k++) file[nbytes - 1 - next_random() % (uint64_t)weights_bytes] = (uint8_t)next_random();
    } else if (what == 1) { /* the directory */
      int64_t word = word_at(section + 8 * (next_random() % 13));
      uint64_t which = (uint64_t[]){0, 1, 4, 5, 9, 12}[next_random() % 6];
      changed(&word, 8);
      if (which == 0 && word > 0 && word < (int64_t)nbytes) word = -word; /* never other code */
      if (which == 1) word |= (int64_t)1 << 50;
      memcpy(section + 8 * which, &word, 8);
      digest_of(section, length, file + 48);
    } else if (what >= 0 && n > states) {
      for (uint64_t k = 0, many = 1 + next_random() % 3; k < many; k++) {
        uint8_t *place = section + 104 + 8 * ((uint64_t)states + next_random() % (uint64_t)(n - states));
        int64_t word = word_at(place);
        changed(&word, word_at(section + 104 + 8 * (next_random() % (uint64_t)n)));
        memcpy(place, &word, 8);
      }
    }
    /* half of the changed plans are those that the code names: they are bound, but never run */
    int seal = what >= 2 && next_random() % 2;
    if (what != 1) resealed(file, nbytes, seal);
    ingot_model *model;
    ingot_session *session;
    int code = ingot_open_memory(file, nbytes, &model);
    if (code != INGOT_OK) {
      refused++;
      if (turn < 0) {
        fprintf(stderr, "%s\n", ingot_error());
        return 1;
      }
      continue;
    }
    int takes = ingot_input_count(model) <= 16 && ingot_output_count(model) <= 64;
    if (takes && ingot_session_open(model, 1, &session) == INGOT_OK) {
      memset(outputs, 0, sizeof outputs);
      size_t room;
      if (seal) {
        if (!ingot_output_count(model) || ingot_output_bytes(session, inputs, 0, &room) == INGOT_OK)
          bound++;
        else
          refused++;
      } else {
        if (ingot_run(session, inputs, outputs) == INGOT_OK)
          ran++;
        else if (turn < 0)
          return 1;
        else
          refused++;
      }
      ingot_session_close(session);
    } else {
      refused++;
    }
    ingot_close(model);
  }
  printf("%ld %ld %ld\n", refused, bound, ran);
  for (int i = 0; i < 16; i++) free(inputs[i].data);
  free(original);
  free(given);
  free(file);
  return 0;
}

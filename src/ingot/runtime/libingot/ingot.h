/* libingot: runs compiled models (`.ingot` files) without Python. C11, POSIX threads, Linux on x86-64 and AArch64.
 *
 * A model is code and weights: read-only, shared by any number of sessions. A session is the memory, the threads and
 * the state of one run at a time: give each thread that runs a model its own.
 *
 *   ingot_model *model;
 *   ingot_session *session;
 *   int64_t dims[] = {8, 128};
 *   ingot_tensor x = {data, sizeof data, dims, 2}, y = {0};
 *   if (ingot_open("model.ingot", &model)) puts(ingot_error());
 *   if (ingot_session_open(model, 1, &session)) puts(ingot_error());
 *   if (ingot_run(session, &x, &y)) puts(ingot_error());
 *   ... y.data, y.rank, y.dims: the session's until it runs again
 *   ingot_session_close(session);
 *   ingot_close(model);
 *
 * Every function that returns an int returns INGOT_OK or one of the errors below, and changes nothing that its caller
 * owns on an error. A file is native code: open what you trust as you would trust a shared library. Files that are
 * damaged, or whose plan was changed, are refused.
 */
#ifndef INGOT_H
#define INGOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  INGOT_OK = 0,
  INGOT_FILE = 1,     /* the file cannot be read */
  INGOT_FORMAT = 2,   /* not an artifact, or of another version: save the model again */
  INGOT_CORRUPT = 3,  /* truncated, or a digest is wrong */
  INGOT_PLAN = 4,     /* the plan is malformed, or not that of the code */
  INGOT_MACHINE = 5,  /* compiled for another processor, or for a GPU */
  INGOT_MEMORY = 6,   /* out of memory, or no permission for executable memory */
  INGOT_ARGUMENT = 7, /* an argument is NULL, a number out of range, or an output has too little room */
  INGOT_SHAPE = 8,    /* the model does not take these shapes or sizes */
  INGOT_DATA = 9      /* sizes that the data decides are beyond what was reserved */
};

/* A tensor is contiguous, its last axis first in memory. For an output, `data` NULL asks for memory of the session;
 * else `nbytes` is the room there, and `ingot_output_bytes` tells how much a run may need. A run sets the other
 * fields. */
typedef struct {
  void *data;
  size_t nbytes;
  const int64_t *dims;
  int rank;
} ingot_tensor;

/* dims: -1 for a size that calls decide. dtype: "f32", "i64", "bool", ... */
typedef struct {
  const char *name;
  const char *dtype;
  size_t itemsize;
  const int64_t *dims;
  int rank;
} ingot_spec;

typedef struct ingot_model ingot_model;
typedef struct ingot_session ingot_session;

/* What the last error of this thread was about. */
const char *ingot_error(void);

int ingot_open(const char *path, ingot_model **model);
/* data: of a whole file; it must stay while the model is open. */
int ingot_open_memory(const void *data, size_t nbytes, ingot_model **model);
void ingot_close(ingot_model *model); /* after its sessions */

int ingot_input_count(const ingot_model *model);
int ingot_output_count(const ingot_model *model);
int ingot_state_count(const ingot_model *model);
int ingot_input(const ingot_model *model, int index, ingot_spec *spec);
int ingot_output(const ingot_model *model, int index, ingot_spec *spec);
int ingot_state(const ingot_model *model, int index, ingot_spec *spec);

/* threads: 1 to 1024, this one among them. Results do not depend on it. */
int ingot_session_open(const ingot_model *model, int threads, ingot_session **session);
void ingot_session_close(ingot_session *session);
/* inputs: all of them, in the model's order; outputs likewise. */
int ingot_run(ingot_session *session, const ingot_tensor *inputs, ingot_tensor *outputs);
/* The most bytes that the output takes for inputs of these shapes (and, where sizes are their elements, values). */
int ingot_output_bytes(ingot_session *session, const ingot_tensor *inputs, int index, size_t *nbytes);

/* Copy what is kept from run to run, or replace it; nbytes: its size. */
int ingot_state_read(const ingot_session *session, int index, void *to, size_t nbytes);
int ingot_state_write(ingot_session *session, int index, const void *from, size_t nbytes);

#ifdef __cplusplus
}
#endif
#endif

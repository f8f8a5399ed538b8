/* Runs softmax.ingot, whose input and output are f32[N, 3]. See docs/how-to/c-abi.md. */
#include <stdio.h>
#include "ingot.h"

static int failed(void) {
  fprintf(stderr, "%s\n", ingot_error());
  return 1;
}

int main(int count, char **words) {
  ingot_model *model;
  ingot_session *session;
  ingot_spec spec;
  if (ingot_open(count > 1 ? words[1] : "softmax.ingot", &model)) return failed();
  if (ingot_output(model, 0, &spec)) return failed();
  if (ingot_session_open(model, 1, &session)) return failed();

  float data[2][3] = {{0, 1, 2}, {5, 5, 5}};
  const int64_t dims[] = {2, 3};
  ingot_tensor x = {data, sizeof data, dims, 2}, y = {0};
  if (ingot_run(session, &x, &y)) return failed();

  printf("%s: %s[%lld, %lld]\n", spec.name, spec.dtype, (long long)y.dims[0], (long long)y.dims[1]);
  const float *values = y.data;
  for (int64_t i = 0; i < y.dims[0]; i++, values += 3) printf("%.4f %.4f %.4f\n", values[0], values[1], values[2]);
  ingot_session_close(session);
  ingot_close(model);
  return 0;
}

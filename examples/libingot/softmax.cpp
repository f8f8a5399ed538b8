// Runs softmax.ingot, whose input and output are f32[N, 3]. See docs/how-to/c-abi.md.
#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

#include "ingot.h"

using Model = std::unique_ptr<ingot_model, decltype(&ingot_close)>;
using Session = std::unique_ptr<ingot_session, decltype(&ingot_session_close)>;

static void check(int code) {
  if (code != INGOT_OK) throw std::runtime_error(ingot_error());
}

static Model open(const char *path) {
  ingot_model *model = nullptr;
  check(ingot_open(path, &model));
  return Model(model, ingot_close);
}

static Session session_of(const Model &model, int threads) {
  ingot_session *session = nullptr;
  check(ingot_session_open(model.get(), threads, &session));
  return Session(session, ingot_session_close);
}

int main(int count, char **words) try {
  const Model model = open(count > 1 ? words[1] : "softmax.ingot");
  const Session session = session_of(model, 1);
  ingot_spec spec;
  check(ingot_output(model.get(), 0, &spec));

  std::vector<float> data = {0, 1, 2, 5, 5, 5};
  const std::array<int64_t, 2> dims = {2, 3};
  const ingot_tensor x = {data.data(), data.size() * sizeof(float), dims.data(), 2};
  ingot_tensor y = {};
  check(ingot_run(session.get(), &x, &y));

  std::printf("%s: %s[%lld, %lld]\n", spec.name, spec.dtype, (long long)y.dims[0], (long long)y.dims[1]);
  const float *values = static_cast<const float *>(y.data);
  for (int64_t i = 0; i < y.dims[0]; i++, values += 3) std::printf("%.4f %.4f %.4f\n", values[0], values[1], values[2]);
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

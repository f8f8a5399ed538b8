/* emulated ADDRESS ENTRY ARGUMENT IN OUT: map a memory image at ADDRESS, call ENTRY(ARGUMENT) in it, write the image. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int through(int file, char *at, size_t left, int writes) {
  while (left > 0) {
    ssize_t n = writes ? write(file, at, left) : read(file, at, left);
    if (n <= 0) return 1;
    at += n;
    left -= (size_t)n;
  }
  return 0;
}

int main(int count, char **words) {
  if (count != 6) return 2;
  char *base = (char *)strtoull(words[1], NULL, 0);
  uint64_t (*entry)(void *) = (uint64_t (*)(void *))strtoull(words[2], NULL, 0);
  void *argument = (void *)strtoull(words[3], NULL, 0);
  struct stat status;
  int in = open(words[4], O_RDONLY), out = open(words[5], O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (in < 0 || out < 0 || fstat(in, &status)) return 3;
  size_t size = (size_t)status.st_size;
  void *got = mmap(base, size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (got != base || through(in, base, size, 0)) return 4;
  __builtin___clear_cache(base, base + size);
  while (entry(argument) != 0) { }
  return through(out, base, size, 1) ? 5 : 0;
}

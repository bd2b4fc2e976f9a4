/* SPDX-License-Identifier: Apache-2.0 */
/* The library, loaded by a program that was not linked with it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ronde/ronde_c_types.h"

static void fail(const char* what, const char* why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

#define CHECK(condition) ((condition) ? (void)0 : fail("does not hold", #condition))

/* C has no conversion from a pointer to data to one to a function: POSIX copies the bits. */
static void find(void* library, const char* name, void* function) {
  void* const symbol = dlsym(library, name);
  if (symbol == NULL) fail(name, dlerror());
  memcpy(function, &symbol, sizeof(symbol));
}

static void use(void* library, int expected_ranks) {
  const char* (*last_error)(void);
  int (*init)(const ronde_init_options*);
  int (*size)(uint32_t, int*);
  int (*allreduce)(const ronde_tensor*, ronde_tensor*, const ronde_operation_options*, ronde_work*);
  int (*wait)(ronde_work, double);
  int (*free_work)(ronde_work);
  int (*shutdown)(void);
  find(library, "ronde_last_error", &last_error);
  find(library, "ronde_init", &init);
  find(library, "ronde_size", &size);
  find(library, "ronde_allreduce", &allreduce);
  find(library, "ronde_work_wait", &wait);
  find(library, "ronde_work_free", &free_work);
  find(library, "ronde_shutdown", &shutdown);
  int ranks = 0;
  float value = 2;
  ronde_tensor tensor = RONDE_TENSOR_INIT;
  ronde_work work = NULL;
  tensor.data = &value;
  tensor.dtype = RONDE_F32;
  CHECK(size(RONDE_ALL_RANKS, &ranks) == RONDE_E_NOT_INITIALIZED);
  CHECK(strstr(last_error(), "ronde_init()") != NULL);
  CHECK(init(NULL) == RONDE_OK);
  CHECK(size(RONDE_ALL_RANKS, &ranks) == RONDE_OK);
  CHECK(ranks == expected_ranks);
  CHECK(allreduce(&tensor, &tensor, NULL, &work) == RONDE_OK);
  CHECK(wait(work, -1) == RONDE_OK);
  CHECK(free_work(work) == RONDE_OK);
  CHECK(value == 2.0f * (float)ranks);
  CHECK(shutdown() == RONDE_OK);
}

/* Its path is the first argument, how many ranks there are the second. Closing it does not unload
 * it: what it does at exit is still there. */
int main(int argc, char** argv) {
  if (argc != 3) fail(argv[0], "expected the path of libronde_c.so, and the number of ranks");
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail(argv[1], dlerror());
  use(library, (int)strtol(argv[2], NULL, 10));
  CHECK(dlclose(library) == 0);
  CHECK(dlopen(argv[1], RTLD_NOW | RTLD_NOLOAD) == library);
  puts("loaded, used and closed");
  return 0;
}

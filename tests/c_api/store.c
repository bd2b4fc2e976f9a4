/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

enum { kPath = 512 };

/* Each key is a file, whose name has '_' instead of '/'. */
static void path_of(char path[kPath], const char* folder, const char* key) {
  const int length = snprintf(path, kPath, "%s/%s", folder, key);
  CHECK(length > 0 && length < kPath);
  for (char* c = path + strlen(folder) + 1; *c != '\0'; ++c) {
    if (*c == '/') *c = '_';
  }
}

/* Writes another file and renames it, so that no reader sees half a value. */
int store_put(void* folder, const char* key, const char* value) {
  char path[kPath];
  char beside[kPath + 8];
  path_of(path, folder, key);
  snprintf(beside, sizeof(beside), "%s.new", path);
  FILE* const file = fopen(beside, "w");
  if (file == NULL) return 5;
  const int failed = fputs(value, file) < 0;
  if (fclose(file) != 0 || failed) return 5;
  return rename(beside, path) == 0 ? 0 : 5;
}

int store_get(void* folder, const char* key, char* value, size_t capacity, size_t* length) {
  char path[kPath];
  path_of(path, folder, key);
  FILE* const file = fopen(path, "r");
  if (file == NULL) return RONDE_KEY_ABSENT;
  fseek(file, 0, SEEK_END);
  *length = (size_t)ftell(file);
  rewind(file);
  const size_t wanted = *length < capacity ? *length : capacity;
  const size_t got = fread(value, 1, wanted, file);
  fclose(file);
  return got == wanted ? 0 : 5;
}

ronde_init_options store_options(char* folder, int rank, int size) {
  ronde_init_options options = {0};
  options.struct_size = sizeof(options);
  options.rank = rank;
  options.size = size;
  options.local_rank = rank;
  options.put = store_put;
  options.get = store_get;
  options.context = folder;
  return options;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_TESTS_C_API_CHECK_H
#define RONDE_TESTS_C_API_CHECK_H

/* Checks and cases of the plain C tests. A check that fails ends the process. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ronde/ronde_c.h"

void fail_check(const char* what, const char* file, int line);

#define CHECK(condition) ((condition) ? (void)0 : fail_check(#condition, __FILE__, __LINE__))
#define CHECK_OK(call) CHECK((call) == RONDE_OK)
/* The call fails with this code, and its text contains `part`. */
#define CHECK_FAILS(code, part, call) \
  do {                                \
    CHECK((call) == (code));          \
    CHECK_LAST_ERROR(part);           \
  } while (0)
#define CHECK_LAST_ERROR(part) CHECK(strstr(ronde_last_error(), (part)) != NULL)

/* What this process writes to stderr from the one call to the other. The text stays until the next
 * begin_capture(). A check that fails meanwhile is still seen. */
void begin_capture(void);
const char* end_capture(void);

struct test_case {
  const char* name;
  void (*body)(void);
  const char* tags; /* "[n2][n3]": with so many ranks only; "": with any number */
};

#define CASES_END \
  { NULL, NULL, NULL }

struct suite {
  const char* name;
  const struct test_case* cases; /* up to CASES_END */
};

/* `--ronde-list` lists the cases for ctest; else runs the one whose name is given, by `run`, at
 * most for RONDE_TEST_DEADLINE_S. */
int run_suites(int argc, char** argv, const struct suite* suites, size_t count,
               void (*run)(const struct test_case* one));

#endif

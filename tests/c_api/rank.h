/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_TESTS_C_API_RANK_H
#define RONDE_TESTS_C_API_RANK_H

/* The cases that run on every rank of a group. */

#include "check.h"

extern const struct test_case kCollectives[];
extern const struct test_case kBadInput[];
extern const struct test_case kCapacity[];
extern const struct test_case kGroups[];
extern const struct test_case kJoin[];
extern const struct test_case kSets[];
extern const struct test_case kThreads[];
extern const struct test_case kWorks[];
extern const struct test_case kWorlds[];

#define RANK_SUITES                                                                   \
  {                                                                                   \
    {"collectives", kCollectives}, {"bad_input", kBadInput}, {"capacity", kCapacity}, \
        {"groups", kGroups}, {"join", kJoin}, {"sets", kSets}, {"threads", kThreads}, \
        {"works", kWorks}, {"worlds", kWorlds},                                       \
  }

#endif

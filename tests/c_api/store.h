/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RONDE_TESTS_C_API_STORE_H
#define RONDE_TESTS_C_API_STORE_H

/* A store of keys and values in a folder, for ranks that no launcher started. */

#include "ronde/ronde_c.h"

/* Makes an empty folder; its path is written to `folder`. */
void make_store(char folder[64]);
void remove_store(const char* folder);

/* For ronde_init_options: the context is the path. */
int store_put(void* folder, const char* key, const char* value);
int store_get(void* folder, const char* key, char* value, size_t capacity, size_t* length);

/* The options of a rank that meets others there. */
ronde_init_options store_options(char* folder, int rank, int size);

/* Forks a process for each rank, which runs `body` and ends; all have to end with 0. */
void fork_ranks(int size, void (*body)(char* folder, int rank, int size));

#endif

// SPDX-License-Identifier: Apache-2.0
#pragma once

// LibTorch defines a CHECK of its own; in the tests it is Catch2's.
#include <ronde/torch.h>
#undef CHECK
#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#else
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#endif

#include <functional>
#include <string>
#include <vector>

namespace ronde_test {

/// Initialises Ronde for the rest of the process, and shuts it down at its end. Every case that
/// communicates begins with it.
void use_ronde();

/// The text of the UsageError that `function` throws; fails the case if it throws none.
std::string usage_error(const std::function<void()>& function);

bool contains(const std::string& text, const std::string& part);

/// Whether every rank has the same bits. Collective.
bool same_on_all_ranks(const at::Tensor& tensor);

/// All parameters as one vector of doubles.
at::Tensor flatten(const std::vector<at::Tensor>& tensors);

/// The counter `name` of `part` of Ronde's stats; fails the case if there is none.
std::uint64_t counted(const std::string& part, const std::string& name);

/// Normal numbers that depend on `seed` alone.
at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed, at::ScalarType dtype = at::kDouble);

/// Equal shapes, and values within `tolerance`, absolute and relative; in double.
bool near(const at::Tensor& a, const at::Tensor& b, double tolerance);

}  // namespace ronde_test

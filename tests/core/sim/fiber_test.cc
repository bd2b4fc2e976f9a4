// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/fiber.h"

#include <catch2/catch.hpp>
#include <deque>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/src/base/caller.h"

namespace ronde {
namespace {

TEST_CASE("fibers run in turn, each with its own locals") {
  std::deque<Fiber> fibers;
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    fibers.emplace_back([&, i] {
      for (int turn = 0; turn < 3; ++turn) {
        order.push_back(10 * i + turn);
        fibers[static_cast<std::size_t>(i)].suspend();
      }
    });
  }
  for (int turn = 0; turn < 4; ++turn) {
    for (Fiber& fiber : fibers) {
      CHECK_FALSE(fiber.has_returned());
      fiber.resume();
    }
  }
  CHECK(order == std::vector{0, 10, 20, 1, 11, 21, 2, 12, 22});
  for (const Fiber& fiber : fibers) CHECK(fiber.has_returned());
}

TEST_CASE("what a fiber handles, and is inside of, is not what others do") {
  std::deque<Fiber> fibers;
  std::vector<std::string> caught;
  for (int i = 0; i < 3; ++i) {
    fibers.emplace_back([&, i] {
      const EngineScope scope;
      try {
        throw std::runtime_error(std::to_string(i));
      } catch (...) {
        fibers[static_cast<std::size_t>(i)].suspend();
        try {
          throw;
        } catch (const std::runtime_error& error) {
          caught.emplace_back(error.what());
        }
      }
    });
  }
  for (Fiber& fiber : fibers) {
    fiber.resume();
    CHECK(std::current_exception() == nullptr);
    CHECK_FALSE(EngineScope::is_inside());
  }
  for (const std::size_t i : {1U, 0U, 2U}) fibers[i].resume();
  CHECK(caught == std::vector<std::string>{"1", "0", "2"});
}

}  // namespace
}  // namespace ronde

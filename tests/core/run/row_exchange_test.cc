// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/backend_calls.h"

#include <catch2/catch.hpp>
#include <cstring>

using namespace ronde;

TEST_CASE("rows that no rank can have sent are an error that names it") {
  using Rows = std::vector<std::int64_t>;
  RowExchange exchange({1, 1}, DataType::U8);
  for (const Rows& words : {Rows{1, 1, -1, 1}, Rows{1, 1, 2, 1}}) {
    std::memcpy(exchange.call().output, words.data(), words.size() * sizeof words[0]);
    CHECK_THROWS_WITH(exchange.received_rows(), Catch::Contains("rank 1 sent are damaged"));
  }
}

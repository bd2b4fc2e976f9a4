// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/bucket.h"

#include <catch2/catch.hpp>
#include <cstring>

namespace {

using namespace ronde;
using Rows = std::vector<std::int64_t>;

/// What the backend would bring from ranks that send `words`: rows and most of each.
void bring(RowExchange& exchange, const Rows& words) {
  std::memcpy(exchange.call().output, words.data(), words.size() * sizeof words[0]);
}

}  // namespace

TEST_CASE("a rank sends each other one its rows and the most of all, in any type") {
  for (const DataType moved : {DataType::Bool, DataType::F16, DataType::F32, DataType::I64}) {
    RowExchange exchange({5, 0, 7}, moved);
    const AlltoallCall call = exchange.call();
    CHECK(call.dtype == moved);
    CHECK(call.largest_count * size_of(moved) == 16);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CHECK(call.send_counts[rank] == call.largest_count);
      CHECK(call.receive_counts[rank] == call.largest_count);
    }
    const Rows sent{5, 7, 0, 7, 7, 7};
    CHECK(std::memcmp(call.input, sent.data(), sent.size() * sizeof sent[0]) == 0);
    bring(exchange, {4, 4, 0, 9, 7, 7});
    CHECK(exchange.received_rows() == Rows{4, 0, 7});
    CHECK(exchange.most_rows() == 9);
  }
}

TEST_CASE("rows that no rank can have sent are an error that names it") {
  RowExchange exchange({1, 1}, DataType::U8);
  for (const Rows& words : {Rows{1, 1, -1, 1}, Rows{1, 1, 2, 1}}) {
    bring(exchange, words);
    CHECK_THROWS_WITH(exchange.received_rows(), Catch::Contains("rank 1 sent are damaged"));
  }
}

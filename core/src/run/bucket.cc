// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/bucket.h"

#include <algorithm>
#include <string>

#include "ronde/error.h"

namespace ronde {

RowExchange::RowExchange(const std::vector<std::int64_t>& sent_rows, DataType moved)
    : moved_(moved),
      received_(sent_rows.size()),
      counts_(sent_rows.size(), sizeof(Word) / size_of(moved)) {
  const std::int64_t most = std::ranges::max(sent_rows);
  for (const std::int64_t rows : sent_rows) sent_.push_back({rows, most});
}

AlltoallCall RowExchange::call() {
  return {.input = sent_.data(),
          .output = received_.data(),
          .send_counts = counts_,
          .receive_counts = counts_,
          .largest_count = counts_.front(),
          .dtype = moved_};
}

std::vector<std::int64_t> RowExchange::received_rows() const {
  std::vector<std::int64_t> rows;
  for (const Word& word : received_) {
    if (word.rows < 0 || word.rows > word.most) {
      throw Error("the rows that rank " + std::to_string(rows.size()) + " sent are damaged: " +
                  std::to_string(word.rows) + " of at most " + std::to_string(word.most));
    }
    rows.push_back(word.rows);
  }
  return rows;
}

}  // namespace ronde

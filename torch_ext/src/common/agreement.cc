// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/common/agreement.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "torch_ext/src/common/fingerprint.h"

namespace ronde::detail {
namespace {

// One rank's statement travels as text: 'p' and the problem, or 'l' and the lines, or nothing.
std::string encode(const Statement& statement) {
  if (!statement.problem.empty()) return "p" + statement.problem;
  if (statement.abstains) return {};
  std::string text = "l";
  for (const std::string& line : statement.lines) text += line + "\n";
  return text;
}

Statement decode(std::string_view text) {
  Statement statement;
  statement.abstains = text.empty();
  if (text.starts_with('p')) {
    statement.problem = text.substr(1);
    return statement;
  }
  text.remove_prefix(std::min<std::size_t>(1, text.size()));
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    statement.lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return statement;
}

// The elements of all ranks in rank order; `mine` may have another length on each.
template <typename T>
std::vector<T> gather(const std::string& name, DataType dtype, const std::vector<T>& mine,
                      ProcessSet set, std::chrono::nanoseconds timeout) {
  struct Memory {
    std::vector<T> input;
    std::vector<T> output;
  };
  const auto memory = std::make_shared<Memory>();
  memory->input = mine;
  Request request;
  request.kind = Collective::Allgather;
  request.name = name;
  request.dtype = dtype;
  request.shape = {static_cast<std::int64_t>(mine.size())};
  request.input = memory->input.data();
  request.set = set;
  request.timeout = timeout;
  request.allocate_output = [raw = memory.get()](const std::vector<std::int64_t>& shape) -> void* {
    raw->output.resize(static_cast<std::size_t>(shape.at(0)));
    return raw->output.data();
  };
  request.keep_alive = memory;
  run(std::move(request));
  return std::move(memory->output);
}

// Submits an operation that leaves the greatest of all ranks' in `values`, element by element. It
// goes on without ranks that have joined.
template <typename T>
Work reduce_to_greatest(const std::string& name, DataType dtype,
                        const std::shared_ptr<std::vector<T>>& values, ProcessSet set,
                        std::chrono::nanoseconds timeout) {
  Request request;
  request.kind = Collective::Allreduce;
  request.op = ReduceOp::Max;
  request.name = name;
  request.dtype = dtype;
  request.shape = {static_cast<std::int64_t>(values->size())};
  request.input = values->data();
  request.output = values->data();
  request.set = set;
  request.timeout = timeout;
  request.keep_alive = values;
  return submit(std::move(request));
}

// Rank r's text begins at the sum of the lengths before it.
std::vector<Statement> split(std::string_view texts, const std::vector<std::int64_t>& lengths) {
  std::vector<Statement> all;
  for (const std::int64_t length : lengths) {
    const std::size_t count = std::min(static_cast<std::size_t>(length), texts.size());
    all.push_back(decode(texts.substr(0, count)));
    texts.remove_prefix(count);
  }
  return all;
}

std::string first_difference(const std::vector<std::string>& mine,
                             const std::vector<std::string>& reference, const std::string& whose) {
  const auto [at, there] =
      std::mismatch(mine.begin(), mine.end(), reference.begin(), reference.end());
  const auto quoted = [](auto it, const auto& lines) {
    return it == lines.end() ? std::string("nothing more") : "\"" + *it + "\"";
  };
  return "has " + quoted(at, mine) + " where " + whose + " has " + quoted(there, reference);
}

}  // namespace

std::string subject_of(const std::string& function, const std::string& name) {
  return "ronde::" + function + (name.empty() ? "" : "(" + name + ")");
}

std::string disagreement(const std::string& subject, const std::vector<Statement>& all,
                         const std::vector<int>& ranks, const std::string& advice) {
  const auto name = [&ranks](std::size_t place) {
    return "rank " + std::to_string(ranks.empty() ? static_cast<int>(place) : ranks.at(place));
  };
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].problem.empty()) continue;
    text += "\n  " + name(i) + ": " + all[i].problem;
  }
  if (!text.empty()) return subject + ": impossible on some ranks:" + text;
  const auto first = static_cast<std::size_t>(
      std::find_if(all.begin(), all.end(), [](const Statement& s) { return !s.abstains; }) -
      all.begin());
  for (std::size_t i = first + 1; i < all.size(); ++i) {
    if (all[i].abstains || all[i].lines == all[first].lines) continue;
    text += "\n  " + name(i) + " " + first_difference(all[i].lines, all[first].lines, name(first));
  }
  if (text.empty()) return {};
  return subject + ": the ranks differ. " + advice + ":" + text;
}

void check_member(const std::string& subject, ProcessSet set, const std::string& advice) {
  if (rank_in(set)) return;
  std::string members;
  for (const int member : ranks_of(set)) {
    if (!members.empty()) members += ',';
    members += std::to_string(member);
  }
  throw UsageError(subject + ": rank " + std::to_string(rank()) + " is not in process set " +
                   std::to_string(set.id) + ", which has the ranks " + members +
                   (advice.empty() ? "" : ". " + advice));
}

Agreement agree(const std::string& subject, const Statement& mine, ProcessSet set,
                const AgreementOptions& options) {
  const std::string text = encode(mine);
  const auto length = static_cast<std::int64_t>(text.size());
  const auto hash = static_cast<std::int64_t>(fingerprint(text));
  // A problem is never agreed upon: its length travels as a negative number.
  const std::int64_t signed_length = mine.problem.empty() ? length : -length;
  const std::vector<std::int64_t> brief = gather<std::int64_t>(
      subject + "/agreement", DataType::I64, {hash, signed_length}, set, options.timeout);
  Agreement result;
  std::vector<std::int64_t> lengths;
  bool equal = true;
  for (std::size_t i = 0; i + 1 < brief.size(); i += 2) {
    lengths.push_back(std::abs(brief[i + 1]));
    if (brief[i + 1] == 0) {
      result.any_abstained = true;
      continue;
    }
    if (result.speaker < 0) result.speaker = static_cast<int>(i / 2);
    const std::size_t first = 2 * static_cast<std::size_t>(result.speaker);
    equal =
        equal && brief[i] == brief[first] && brief[i + 1] == brief[first + 1] && brief[i + 1] > 0;
  }
  if (equal) return result;
  const std::vector<char> texts = gather<char>(subject + "/statements", DataType::U8,
                                               {text.begin(), text.end()}, set, options.timeout);
  throw UsageError(disagreement(subject, split({texts.data(), texts.size()}, lengths),
                                ranks_of(set), options.advice));
}

Comparison::Comparison(std::string subject, const Statement& mine, ProcessSet set,
                       AgreementOptions options)
    : subject_(std::move(subject)), mine_(mine), set_(set), options_(std::move(options)) {
  const auto hash = static_cast<std::int64_t>(fingerprint(encode(mine_)));
  // The least hash is the complement of the greatest complement.
  brief_ = std::make_shared<std::vector<std::int64_t>>(
      std::vector{hash, ~hash, static_cast<std::int64_t>(mine_.lines.size())});
  work_ =
      reduce_to_greatest(subject_ + "/comparison", DataType::I64, brief_, set_, options_.timeout);
}

std::string Comparison::difference() const {
  work_.wait();
  if (brief_->at(0) == ~brief_->at(1) && mine_.problem.empty()) return {};
  const std::size_t first = first_unequal_line(static_cast<std::size_t>(brief_->at(2)));
  Statement shown = mine_;
  shown.lines.erase(shown.lines.begin(), shown.lines.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                   first, shown.lines.size())));
  // Each rank's text from there on in a row of its own; that of a rank that has joined stays empty.
  constexpr std::size_t kRow = 4096;
  const std::string text = encode(shown).substr(0, kRow);
  const std::vector<int> ranks = ranks_of(set_);
  const auto rows = std::make_shared<std::vector<std::uint8_t>>(kRow * ranks.size());
  std::copy(text.begin(), text.end(),
            rows->begin() + static_cast<std::ptrdiff_t>(kRow) * rank_in(set_).value());
  reduce_to_greatest(subject_ + "/compared", DataType::U8, rows, set_, options_.timeout).wait();
  std::vector<Statement> all;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string row(rows->data() + i * kRow, rows->data() + (i + 1) * kRow);
    all.push_back(decode(row.substr(0, row.find('\0'))));
  }
  const std::string difference = disagreement(subject_, all, ranks, options_.advice);
  // Lines may differ behind what fits a row.
  return difference.empty() ? subject_ + ": the ranks differ. " + options_.advice : difference;
}

/// Of `count` lines; that of a problem comes before all of them. Lines that a rank does not have
/// count as empty.
std::size_t Comparison::first_unequal_line(std::size_t count) const {
  const auto hashes = std::make_shared<std::vector<std::int64_t>>();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string line = !mine_.problem.empty()   ? mine_.problem
                             : i < mine_.lines.size() ? mine_.lines[i]
                                                      : "";
    const auto hash = static_cast<std::int64_t>(fingerprint(line));
    hashes->insert(hashes->end(), {hash, ~hash});
  }
  if (count == 0) return 0;
  reduce_to_greatest(subject_ + "/lines", DataType::I64, hashes, set_, options_.timeout).wait();
  std::size_t first = 0;
  while (first < count && hashes->at(2 * first) == ~hashes->at(2 * first + 1)) ++first;
  return first == count ? 0 : first;
}

}  // namespace ronde::detail

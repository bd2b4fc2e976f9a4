// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ronde {

/// Base of everything Ronde throws. docs/failures.md is the contract.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that makes no sense: a bad variable, ranks that disagree on an
/// operation, a duplicate name. The job can go on.
class UsageError : public Error {
 public:
  /// Mistakes that programs distinguish.
  enum class Kind {
    Other,              ///< any that is not below
    DuplicateName,      ///< the name of an operation that is still in flight
    UnknownProcessSet,  ///< never made with this rank, or removed
    NotAMember,         ///< a process set that this rank is not in
  };

  /// `text` says what is wrong and what to do.
  explicit UsageError(const std::string& text, Kind kind = Kind::Other)
      : Error(text), kind_(kind) {}

  /// Returns the kind of mistake.
  Kind kind() const noexcept { return kind_; }

 private:
  Kind kind_;
};

/// A function was called before init, or after shutdown.
class NotInitializedError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// This rank had no memory for the result of an operation, which failed for it alone: it took part
/// all the same. The job can go on.
class OutOfMemoryError : public UsageError {
 public:
  using UsageError::UsageError;
};

/// Request::timeout of an operation passed on a rank before all ranks had submitted theirs. Every
/// rank that has submitted it gets the same error, and so do those that come later. The job can go
/// on.
class TimeoutError : public UsageError {
 public:
  /// `missing_ranks`: not empty.
  TimeoutError(const std::string& text, std::vector<int> missing_ranks)
      : UsageError(text), missing_ranks_(std::move(missing_ranks)) {}

  /// Returns the ranks that had not submitted it when the time had passed, ascending, by their
  /// numbers within its process set. For a message: the ranks that may have sent or received it.
  const std::vector<int>& missing_ranks() const noexcept { return missing_ranks_; }

 private:
  std::vector<int> missing_ranks_;
};

/// The group of ranks is broken: a rank died, left, or never came. Every pending and later
/// operation of every survivor throws this, with the same rank and text; only `shutdown` remains.
class GroupError : public Error {
 public:
  /// `text` says what failed; -1 if the rank is not known.
  GroupError(int failed_rank, const std::string& text) : Error(text), failed_rank_(failed_rank) {}

  /// The first rank that failed, or -1 where no rank can be named.
  int failed_rank() const noexcept { return failed_rank_; }

 private:
  int failed_rank_;
};

}  // namespace ronde

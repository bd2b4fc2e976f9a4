// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace edsr {

/// One line on standard output that says how training goes: rewritten in place on a terminal, else
/// a new line every so many seconds. Meant for rank 0 alone; a disabled one prints nothing.
class ProgressLine {
 public:
  ProgressLine(bool enabled, double seconds_between_lines);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// `fraction` of the budget used; `seconds` trained, by which lines are spaced.
  void show(std::int64_t step, double fraction, double seconds, double loss, double learning_rate,
            double images_per_s);

 private:
  bool enabled_;
  bool terminal_;
  double seconds_between_lines_;
  double shown_at_;
  bool open_line_ = false;
};

}  // namespace edsr

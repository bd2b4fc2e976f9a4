// SPDX-License-Identifier: Apache-2.0
#include "training/progress_line.h"

#include <unistd.h>

#include <cstdio>
#include <limits>

namespace edsr {

ProgressLine::ProgressLine(bool enabled, double seconds_between_lines)
    : enabled_(enabled),
      terminal_(::isatty(STDOUT_FILENO) != 0),
      seconds_between_lines_(seconds_between_lines),
      shown_at_(-std::numeric_limits<double>::infinity()) {}

ProgressLine::~ProgressLine() {
  if (open_line_) std::printf("\n");
}

void ProgressLine::show(std::int64_t step, double fraction, double seconds, double loss,
                        double learning_rate, double images_per_s) {
  if (!enabled_) return;
  if (!terminal_ && seconds - shown_at_ < seconds_between_lines_) return;
  shown_at_ = seconds;
  std::printf("%sstep %6lld  %3.0f %%  %5.0f s  loss %.5f  lr %.2e  %7.1f images/s%s",
              terminal_ ? "\r" : "", static_cast<long long>(step), 100 * fraction, seconds, loss,
              learning_rate, images_per_s, terminal_ ? "\x1b[K" : "\n");
  open_line_ = terminal_;
  std::fflush(stdout);
}

}  // namespace edsr

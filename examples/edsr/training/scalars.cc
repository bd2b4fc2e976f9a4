// SPDX-License-Identifier: Apache-2.0
#include "training/scalars.h"

#include <ronde/ronde.h>

#include <utility>

#include "common/errors.h"
#include "training/step_table.h"

namespace edsr {

Scalars::Scalars(std::filesystem::path path, std::int64_t last_step) : path_(std::move(path)) {
  if (ronde::rank() != 0) return;
  file_ = open_step_table(path_, "step,loss,step_ms,exposed_ms,images_per_s", last_step);
  before_ = ronde::figures();
}

void Scalars::write(std::int64_t step, double loss) {
  if (!file_.is_open()) return;
  const ronde::Figures now = ronde::figures();  // of this rank, since init
  const auto mean_ms = [](const ronde::Distribution& after, const ronde::Distribution& before) {
    const auto count = static_cast<double>(after.count() - before.count());
    return count > 0 ? static_cast<double>(after.total_ns() - before.total_ns()) / 1e6 / count : 0;
  };
  const auto images = static_cast<double>(now.samples - before_.samples) * ronde::size();
  file_ << step << ',' << loss << ',' << mean_ms(now.step_time, before_.step_time) << ','
        << mean_ms(now.exposed, before_.exposed) << ',' << images / (now.seconds - before_.seconds)
        << '\n';
  before_ = now;
  if (!file_.flush()) throw example::InputError("file " + path_.string() + " cannot be written");
}

}  // namespace edsr

// SPDX-License-Identifier: Apache-2.0
#include "engine_subject.h"

#include <utility>

#include "ronde/ronde.h"

namespace ronde::tool {
namespace {

class Engine final : public Subject {
 public:
  std::string backend() const override { return default_runtime().backend_name(DeviceKind::Cpu); }
  void run(Request request) override { submit(std::move(request)).wait(); }
  void settle() override {}
};

}  // namespace

std::unique_ptr<Subject> make_engine() {
  return std::make_unique<Engine>();
}

}  // namespace ronde::tool

// SPDX-License-Identifier: Apache-2.0
// The engine alone: a program that brings its own transport and backend links no more than this.
#include <ronde/build_info.h>
#include <ronde/dtype.h>
#include <ronde/log.h>

#include <cstdlib>
#include <iostream>

// As in a program with another spdlog of its own, which Ronde's logger must not call.
namespace spdlog {
namespace details {
struct log_msg;
}
class logger {
 protected:
  void log_it_(const details::log_msg& message, bool logs, bool keeps);
  virtual void sink_it_(const details::log_msg& message);
};
void logger::log_it_(const details::log_msg&, bool, bool) {
  std::abort();
}
void logger::sink_it_(const details::log_msg&) {
  std::abort();
}
}  // namespace spdlog

int main() {
  ronde::Logger(ronde::LogLevel::Info).info("a line of Ronde's");
  std::cout << "ronde " << ronde::build_info::kVersion << ", "
            << ronde::to_string(ronde::DataType::BF16) << '\n';
  return ronde::size_of(ronde::DataType::BF16) == 2 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string_view>

namespace ronde::c {

// Errors that no call can return.

/// A warning: the operation `name` failed with `error`, and nobody asked.
void log_unheard(std::string_view name, const std::exception_ptr& error) noexcept;
/// An error: `what` happened to a callback of the program's, because of `error`.
void log_thrown(std::string_view what, const std::exception_ptr& error) noexcept;

}  // namespace ronde::c

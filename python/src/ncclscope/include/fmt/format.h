// SPDX-License-Identifier: Apache-2.0
//
// The parts of {fmt} that Kineto's headers use, for a torch that contains these headers but not
// {fmt} (2.7). `format` writes each argument in place of the next `{}`.
#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>

namespace fmt {

template <typename... Args>
std::string format(std::string_view pattern, const Args&... args) {
  std::ostringstream out;
  out << std::boolalpha;
  const auto up_to_next = [&] {
    const std::size_t at = pattern.find("{}");
    out << pattern.substr(0, at);
    pattern.remove_prefix(at == std::string_view::npos ? pattern.size() : at + 2);
  };
  ((up_to_next(), out << args), ...);
  out << pattern;
  return out.str();
}

template <typename Range>
std::string join(const Range& range, std::string_view between) {
  std::ostringstream out;
  std::string_view before;
  for (const auto& item : range) {
    out << before << item;
    before = between;
  }
  return out.str();
}

} // namespace fmt

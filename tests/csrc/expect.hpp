#pragma once

// What the stress tests check with: the first thing wrong is said with the program's name, and ends it
// with 1.

#include <errno.h>  // program_invocation_short_name

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, what.c_str());
  std::exit(1);
}

inline void expect(bool holds, const char* what) {
  if (!holds) fail(what);
}

inline void expect(bool holds, const std::string& what) {
  if (!holds) fail(what);
}

// The error that a call ends with; `words` are in what it says.
template <typename Error>
Error expect_message(const std::function<void()>& call, const std::string& words) {
  try {
    call();
  } catch (const Error& error) {
    expect(std::string(error.what()).find(words) != std::string::npos,
           "'" + words + "' is not said by: " + error.what());
    return error;
  }
  fail("no error where '" + words + "' was expected");
}

template <typename Error>
void expect_throws(const std::function<void()>& call, const std::string& what) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  fail("no error from " + what);
}

// The file FOLDER/notes.<pid>: one JSON object a line, appended by several libraries of a process.
#pragma once

#include <string>

namespace simulator {

// Appends one line with a single write, so that lines of several writers do not mix and survive os._exit and SIGKILL.
void append_note(const std::string& json);

// The text as a JSON string, with its quotation marks.
std::string json_string(const std::string& text);

}  // namespace simulator

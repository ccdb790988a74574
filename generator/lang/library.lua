--[[
The part of Lua's library that a description sees: gives its table of globals. This file itself runs with all of base,
math, string and table. Nothing that it gives shows an address, a hash order or a random number. What works inside C,
where no instructions are counted, is counted by what it is given and gives, or tells its work, in instructions. String
patterns (they backtrack exponentially) and table.move (it runs over any range) are left out.
]]
local sandbox = ... -- what sandbox.c has for this file
local work, find, gsub = sandbox.work, string.find, string.gsub
local SORT_MAX = 100 -- from there on Lua picks pivots by the clock
local STEP, DIGIT = 12, 8 -- work on a key that is compared with some, and on a letter of what is formatted

local function names(from, words)
  local t = {}
  for word in string.gmatch(words, "%S+") do t[word] = from[word] end
  return t
end
local globals = names(_G, "select tonumber")
local libraries = {
  math = names(math, "abs ceil cos exp floor fmod huge log max maxinteger min mininteger modf pi sin sqrt tan "
    .. "tointeger type ult"),
  string = names(string, "byte char len lower reverse sub upper"),
  table = names(table, "pack unpack"),
}

-- Values that would print as an address print as their type.
local function plain(...)
  local v = table.pack(...)
  for i = 1, v.n do
    local kind = type(v[i])
    if kind == "userdata" then v[i] = getmetatable(v[i]).__name end
    if kind == "table" or kind == "function" then v[i] = kind end
  end
  return table.unpack(v, 1, v.n)
end

function globals.tostring(...)
  return tostring(plain(...))
end

function globals.print(...)
  local v = table.pack(plain(...))
  for i = 1, v.n do v[i] = tostring(v[i]) end
  sandbox.write(table.concat(v, "\t"))
end

function libraries.string.format(form, ...)
  if type(form) == "string" and find(gsub(form, "%%%%", ""), "%%[-+ #0-9.]*p") then
    error("string.format has no %p in a description", 0)
  end
  local s = string.format(form, plain(...))
  work(#s * DIGIT)
  return s
end

function libraries.string.rep(s, n, sep)
  if s == "" and (sep or "") == "" and type(n) == "number" then return "" end -- Lua would still count to n
  return string.rep(s, n, sep)
end

-- How many elements of a list lie behind a place; 0 where there is no such.
local function behind(t, at)
  at = tonumber(at) or 0
  return type(t) == "table" and at > 0 and at <= #t and #t - at or 0
end

function libraries.table.sort(t, before)
  if behind(t, 1) >= SORT_MAX then
    error("table.sort takes at most " .. SORT_MAX .. " elements in a description", 0)
  end
  work((behind(t, 1) + 1) * STEP * 4)
  table.sort(t, before)
end

function libraries.table.insert(t, ...)
  if select("#", ...) > 1 then work(behind(t, ...) * 2) end -- with one, that is the element
  table.insert(t, ...)
end

function libraries.table.remove(t, ...)
  work(behind(t, ...) * 2)
  return table.remove(t, ...)
end

function libraries.table.concat(t, sep, first, ...)
  work(behind(t, math.max(tonumber(first) or 1, 1)) * STEP)
  return table.concat(t, sep, first, ...)
end

-- The keys of a table in their order, numbers first: Lua's own order changes from run to run. Keys differ, so that its
-- sort gives one order whatever it picks as pivots.
local function sorted(t, name)
  local meta, keys = getmetatable(t), {}
  if type(t) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table expected, got " .. (meta and meta.__name or type(t)) .. ")", 0)
  end
  if meta then error("this table can't be listed: read its fields by name", 0) end
  for key in next, t do
    if type(key) ~= "number" and type(key) ~= "string" then
      error("pairs takes keys that are numbers or strings in a description", 0)
    end
    keys[#keys + 1] = key
  end
  work(#keys * STEP * (2 + math.log(#keys + 1, 2)))
  table.sort(keys, sandbox.before)
  return keys
end

function globals.pairs(t)
  local keys, i = sorted(t, "pairs"), 0
  return function()
    i = i + 1
    return keys[i], t[keys[i]]
  end
end

-- Tells whether a table is empty; walking is for pairs, whose order is fixed.
function globals.next(t, key)
  local first = sorted(t, "next")[1]
  if key ~= nil then error("next takes no key in a description: walk with pairs", 0) end
  return first, t[first]
end

-- functions of C, so that an error in one that is called last is still the caller's
local function count(t)
  for name, f in next, t do t[name] = type(f) == "function" and sandbox.counted(f) or f end
end
count(globals)
for name, t in next, libraries do
  count(t)
  globals[name] = setmetatable(t, { __index = function(_, key)
    key = type(key) == "string" and key or "?"
    error(name .. "." .. key .. " doesn't exist in a description" .. sandbox.closest(t, key), 0)
  end })
end
getmetatable("").__index = libraries.string
-- these take no time worth telling, and where they are called matters
globals.assert, globals.error, globals.ipairs, globals.type = assert, error, ipairs, type
globals.arg = setmetatable({}, { __index = sandbox.arg })

local absent = " _G _VERSION collectgarbage coroutine debug dofile getmetatable io load loadfile loadstring os package "
  .. "pcall rawequal rawget rawlen rawset require setmetatable utf8 warn xpcall "

return setmetatable(globals, { __index = function(_, name)
  if type(name) ~= "string" then return nil end
  if find(absent, " " .. name .. " ", 1, true) then error(name .. " doesn't exist in a description", 0) end
  error("unknown name '" .. name .. "'" .. sandbox.closest(globals, name), 0)
end })

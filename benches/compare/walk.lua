-- Script for wrk: requests the paths of a file in turn, and prints the results in the format that load.py parses.
--   wrk -s walk.lua URL -- PAUSE FILE METHOD [HEADER VALUE]...
-- Each connection waits for PAUSE milliseconds before each request.
-- Each line of FILE is a path, optionally followed by a tab and an entity tag to send in If-None-Match.
-- With METHOD "random:X,Y,Z", the paths are FILE/x/y/z with random x < X, y < Y and z < Z.
local threads = 0
function setup(thread)
    threads = threads + 1
    thread:set('number', threads)
end

local requests, at = {}, 0
local prefix, sides

function init(args)
    local pause, file, method = tonumber(args[1]), args[2], args[3]
    if pause > 0 then
        -- Defined only if needed: wrk is a little faster without this function. It checks for it after init.
        delay = function() return pause end
    end
    local headers = {}
    for i = 4, #args - 1, 2 do
        headers[args[i]] = args[i + 1]
    end
    if method:match('^random:') then
        prefix, sides = file, {}
        for side in method:gmatch('%d+') do
            table.insert(sides, tonumber(side))
        end
        math.randomseed(os.time() * 7 + number)
        return
    end
    for line in io.lines(file) do
        local path, tag = line:match('^([^\t]+)\t?(.*)$')
        headers['If-None-Match'] = tag ~= '' and tag or nil
        table.insert(requests, wrk.format(method, path, headers))
    end
    -- The threads start at different paths.
    at = math.floor(#requests * (number - 1) / 2)
end

function request()
    if sides then
        local path = prefix
        for _, side in ipairs(sides) do
            path = path .. '/' .. math.random(0, side - 1)
        end
        return wrk.format('GET', path)
    end
    at = at % #requests + 1
    return requests[at]
end

function done(summary, latency, _)
    local e = summary.errors
    io.write(string.format('RESULT %d %d %d %d %d %d %d\n', summary.requests, summary.duration, summary.bytes, e.status,
        e.connect + e.read + e.write + e.timeout, latency:percentile(50), latency:percentile(99)))
end

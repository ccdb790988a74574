#!/bin/sh
# `trainer import` of edited folders, a line of the table each. Usage: tests/peer/imports.sh TABLE WORKDIR
# WORKDIR has the trees that run.sh built there, and what they exported.
set -u
. "$(dirname "$0")/../suite.sh"
table=$(realpath "$1")
cd "$2" || exit 1

while IFS= read -r line; do
	case $line in '#'* | '') continue ;; esac
	fixture=${line%% | *} rest=${line#* | }
	edit=${rest%% | *} text=${rest#* | }
	rm -rf edited imported
	cp -r "$fixture/out" edited
	sed "$edit" "$fixture/out/config.json" >edited/config.json
	said=$("$fixture/trainer" import edited imported 2>&1)
	status=$?
	good=0
	if [ "$text" = ok ]; then
		[ $status = 0 ] && [ -d imported/step-000000 ] && good=1
	else
		case $said in *"$text"*) [ $status = 1 ] && [ ! -e imported ] && good=1 ;; esac
	fi
	cmp -s edited/config.json "$fixture/out/config.json" && said="the edit changes nothing" good=0
	if [ $good = 1 ]; then ok; else fail "$fixture, $edit: status $status, $(echo "$said" | tail -n 1)"; fi
done <"$table"
suite_end

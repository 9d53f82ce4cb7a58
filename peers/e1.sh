. ./c.sh
J='content-type: application/json'
c $B/; c $B/_up; c -XPUT $B/db; c -XPUT $B/db; c $B/db; c $B/nodb; c -XPUT $B/db%2Fslash; c $B/db%2Fslash; c -XPUT $B/BadName; c -I $B/db
c -XPUT $B/db/a -H "$J" -d '{"v":1}'
c $B/db/_bulk_docs -H "$J" -d '{"new_edits":false,"docs":[{"_id":"b","_rev":"2-bbb","v":2,"_revisions":{"start":2,"ids":["bbb","aaa"]}},{"_id":"b","_rev":"2-ccc","v":3,"_revisions":{"start":2,"ids":["ccc","aaa"]}},{"_id":"b","_rev":"3-ddd","_deleted":true,"_revisions":{"start":3,"ids":["ddd","eee","aaa"]}},{"_id":"t","_rev":"1-abc","_attachments":{"x.txt":{"content_type":"text/plain","data":"aGVsbG8="}}}]}'
c "$B/db/_changes?style=all_docs"
c "$B/db/_changes?style=all_docs&limit=1&since=0"
c "$B/db/_changes?since=now"
c "$B/db/_changes?limit=0"
c "$B/db/_changes?style=all_docs&include_docs=true&conflicts=true&attachments=true"
c "$B/db/_changes?filter=_doc_ids" -H "$J" -d '{"doc_ids":["a"]}'
c "$B/db/_changes?filter=_selector" -H "$J" -d '{"selector":{"v":1}}'
c "$B/db/_changes?filter=_doc_ids&doc_ids=%5B%22a%22%5D"
c -XPUT $B/db/_design/f -H "$J" -d '{"filters":{"q":"function(doc,req){return doc.v==req.query.v||doc._deleted}"},"views":{"v":{"map":"function(doc){if(doc.v==2)emit(1)}"}}}'
c "$B/db/_changes?filter=f/q&v=1&style=all_docs"
c "$B/db/_changes?filter=f/nofilter"
c "$B/db/_changes?filter=nodoc/nofilter"
c "$B/db/_changes?filter=_view&view=f/v"
c "$B/db/_changes?feed=longpoll&since=100&timeout=1000"
echo LONGPOLL; (sleep 1; curl -s -XPUT $B/db/lp -d '{}' -H "$J">/dev/null)& c "$B/db/_changes?feed=longpoll&since=100"
echo LONGPOLL; (sleep 1; curl -s -XPUT $B/db/lp2 -d '{}' -H "$J">/dev/null)& c "$B/db/_changes?feed=longpoll&since=6&heartbeat=300"
echo CONTINUOUS; (sleep 1; curl -s -XPUT $B/db/lp3 -d '{}' -H "$J">/dev/null)& curl -sN -m 4 -i "$B/db/_changes?feed=continuous&since=5&heartbeat=500" | cat -A; echo "[$?]"
c "$B/db/_changes?feed=continuous&timeout=1000&since=7"
c "$B/db/_changes?since=notanumber"
c "$B/db/_changes?since=999&limit=5"
c "$B/db/_changes?descending=true&limit=2"
c "$B/db/_changes?seq_interval=2&limit=3"
